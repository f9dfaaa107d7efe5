// SPDX-License-Identifier: Apache-2.0

package node_test

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	reflectionpb "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/client/admin"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/server/config"
	"github.com/lockstep-mq/lockstep/test/certs"
	"github.com/lockstep-mq/lockstep/test/issuer"
)

// grpcurlEnv is the environment variable with the path of grpcurl, which .ci/run builds.
const grpcurlEnv = "LOCKSTEP_GRPCURL"

// services returns the services of a node, as reported by reflection.
func services(ctx context.Context, cc *grpc.ClientConn) ([]string, error) {
	stream, err := reflectionpb.NewServerReflectionClient(cc).ServerReflectionInfo(ctx)
	if err != nil {
		return nil, err
	}
	if err := stream.Send(&reflectionpb.ServerReflectionRequest{
		MessageRequest: &reflectionpb.ServerReflectionRequest_ListServices{},
	}); err != nil && !errors.Is(err, io.EOF) { // the node has ended the call, and Recv returns the error
		return nil, err
	}
	resp, err := stream.Recv()
	if err != nil {
		return nil, err
	}
	var names []string
	for _, s := range resp.GetListServicesResponse().GetService() {
		names = append(names, s.GetName())
	}
	return names, stream.CloseSend()
}

// Reflection is permitted for each caller that has any right, authenticated by certificate, JWT or token. Other
// callers are rejected. The test also calls the real grpcurl.
//
// The test uses real sockets, because grpcurl is another process.
func TestReflection(t *testing.T) {
	i, ca := issuer.New(t), certs.New(t, "ours")
	c := trustIssuer(secured(t, settings(t, "a"), ca), i)
	c.TLS.ClientAuth = config.ClientAuthNone
	n := start(t, c)
	// The helpers of this package send no credentials, so this test uses a separate client to wait.
	cert, certFile, keyFile := ca.Issue(t, "operator")
	open, err := client.OpenWith(t.Context(), client.Options{
		Addresses: []string{n.ready.Address},
		TLS:       &tls.Config{RootCAs: ca.Pool(), Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS13},
	})
	require.NoError(t, err)
	defer func() { require.NoError(t, open.Close()) }()
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	identity, err := admin.New(open).WhoAmI(ctx)
	require.NoError(t, err)
	require.Equal(t, "operator", identity.GetPrincipal())
	_, err = admin.New(open).Grant(ctx, &pb.AccessRule{
		Principal: "operator", Rights: []pb.AccessRight{pb.AccessRight_ACCESS_RIGHT_OPERATE},
	}, false)
	require.NoError(t, err)
	for _, principal := range []string{"alice", "robot"} {
		_, err = admin.New(open).Grant(ctx, &pb.AccessRule{
			Principal: principal, Queue: "q", Rights: []pb.AccessRight{pb.AccessRight_ACCESS_RIGHT_PUBLISH},
		}, false)
		require.NoError(t, err)
	}
	token := admin.NewToken()
	_, err = admin.New(open).CreateToken(ctx, token, &pb.AccessToken{Name: "robot", Principal: "robot"})
	require.NoError(t, err)
	_, _, err = admin.New(open).CreateQueue(ctx, "q", admin.CreateQueueOptions{})
	require.Error(t, err, "operate is not a queue right")

	jwt := i.Token("alice", nil)
	for name, tt := range map[string]struct {
		certificate bool
		token       string
		code        codes.Code
	}{
		"certificate":           {certificate: true},
		"JWT":                   {token: jwt},
		"token":                 {token: token},
		"no credentials":        {code: codes.PermissionDenied},
		"a JWT without a right": {token: i.Token("mallory", nil), code: codes.PermissionDenied},
		"wrong token":           {token: "lsk_wrong", code: codes.Unauthenticated},
	} {
		t.Run(name, func(t *testing.T) {
			secure := &tls.Config{RootCAs: ca.Pool(), MinVersion: tls.VersionTLS13}
			args := []string{"-cacert", ca.File, "-max-time", "60"}
			ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
			defer cancel()
			if tt.certificate {
				secure.Certificates = []tls.Certificate{cert}
				args = append(args, "-cert", certFile, "-key", keyFile)
			}
			if tt.token != "" {
				ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+tt.token)
				args = append(args, "-H", "authorization: Bearer "+tt.token)
			}
			cc, err := grpc.NewClient(n.ready.Address, grpc.WithTransportCredentials(credentials.NewTLS(secure)))
			require.NoError(t, err)
			defer func() { require.NoError(t, cc.Close()) }()
			names, err := services(ctx, cc)
			require.Equal(t, tt.code, status.Code(err), err)
			if tt.code == codes.OK {
				require.Contains(t, names, "lockstep.v1.QueueService")
			}
			program := os.Getenv(grpcurlEnv)
			if program == "" {
				t.Logf("without grpcurl: %s is not set", grpcurlEnv)
				return
			}
			for _, call := range []string{"list", "lockstep.v1.AdminService/GetStatus"} {
				out, err := exec.CommandContext(ctx, program, append(args, n.ready.Address, call)...).CombinedOutput()
				require.Equal(t, tt.code == codes.OK, err == nil, "%s: %s", call, out)
				if tt.code == codes.OK {
					require.Regexp(t, `lockstep\.v1\.QueueService|ROLE_ACTIVE_ALONE`, string(out))
				}
			}
		})
	}
}
