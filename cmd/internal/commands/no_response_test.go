// SPDX-License-Identifier: Apache-2.0

package commands_test

import (
	"context"
	"net"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	"github.com/lockstep-mq/lockstep/cmd/internal/clitest"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// serveBytes runs a server that sends the same bytes on each connection, and then closes the connection.
func serveBytes(t *testing.T, with string) clitest.CLI {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = ln.Close() })
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go func() {
				defer func() { _ = c.Close() }()
				if _, err := c.Read(make([]byte, 24)); err == nil {
					_, _ = c.Write([]byte(with))
					_, _ = c.Read(make([]byte, 1<<10)) // until the client closes it
				}
			}()
		}
	}()
	return clitest.CLI{T: t, Addr: ln.Addr().String()}
}

// The error for a port with another protocol states this cause, and does not mention TLS.
func TestPortWithAnotherProtocol(t *testing.T) {
	for name, with := range map[string]string{
		"AMQP":    "AMQP\x03\x01\x00\x00",
		"console": "HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
	} {
		c := serveBytes(t, with)
		for _, args := range [][]string{{"status"}, {"queue", "list"}} {
			_, stderr, code := c.Run("", args...)
			require.Equal(t, cli.ExitError, code)
			require.Contains(t, stderr, "client port", name)
			require.NotContains(t, stderr, "--tls-ca", name)
		}
	}
}

// fakeNode is a node that denies access to its status, or that returns a fixed status.
type fakeNode struct {
	pb.UnimplementedAdminServiceServer

	status *pb.GetStatusResponse // nil: access denied
}

func (g *fakeNode) GetStatus(context.Context, *pb.GetStatusRequest) (*pb.GetStatusResponse, error) {
	if g.status == nil {
		return nil, status.Error(codes.PermissionDenied, "no rule lets anonymous read the status")
	}
	return g.status, nil
}

// serveAs runs a fake node.
func serveAs(t *testing.T, g *fakeNode) clitest.CLI {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	server := grpc.NewServer()
	pb.RegisterAdminServiceServer(server, g)
	go func() { _ = server.Serve(ln) }()
	t.Cleanup(server.Stop)
	return clitest.CLI{T: t, Addr: ln.Addr().String()}
}

// A node that denies access is not reported as unreachable.
func TestStatusWithoutPermission(t *testing.T) {
	stdout, stderr, code := serveAs(t, &fakeNode{}).Run("", "status")
	require.Equal(t, cli.ExitError, code)
	require.NotContains(t, stdout, "unreachable")
	require.NotContains(t, stderr, "lockstep dev")
	require.Contains(t, stderr, "access whoami")
}

// Without the TLS files of the voters, the error names the required flags.
func TestVotersWithTLS(t *testing.T) {
	c := serveAs(t, &fakeNode{status: &pb.GetStatusResponse{
		Pair:         &pb.PairStatus{Coordinator: "raft", CoordinatorAddresses: []string{"127.0.0.1:1"}},
		Certificates: []*pb.CertificateStatus{{Use: "raft", File: "a.pem"}},
	}})
	_, stderr, code := c.Run("", "pair", "voters")
	require.Equal(t, cli.ExitUsage, code, stderr)
	require.Contains(t, stderr, "--raft-ca")
	c = serveAs(t, &fakeNode{status: &pb.GetStatusResponse{Pair: &pb.PairStatus{Coordinator: "raft"}}})
	_, stderr, code = c.Run("", "pair", "voters")
	require.Equal(t, cli.ExitError, code, stderr)
	require.Contains(t, stderr, "set --voters\n")
}
