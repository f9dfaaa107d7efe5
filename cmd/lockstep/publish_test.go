package main

import (
	"bytes"
	"context"
	"net"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// mute is an active node that takes publishes and answers none.
type mute struct {
	pb.UnimplementedQueueServiceServer
	pb.UnimplementedAdminServiceServer
	silent func() // called when it gets one
}

func (m *mute) WatchStatus(_ *pb.WatchStatusRequest, s grpc.ServerStreamingServer[pb.WatchStatusResponse]) error {
	if err := s.Send(&pb.WatchStatusResponse{Status: &pb.GetStatusResponse{Role: pb.Role_ROLE_ACTIVE_ALONE}}); err != nil {
		return err
	}
	<-s.Context().Done()
	return nil
}

func (m *mute) GetStatus(context.Context, *pb.GetStatusRequest) (*pb.GetStatusResponse, error) {
	return &pb.GetStatusResponse{Role: pb.Role_ROLE_ACTIVE_ALONE}, nil
}

func (m *mute) PublishStream(s pb.QueueService_PublishStreamServer) error {
	for {
		if _, err := s.Recv(); err != nil {
			return err
		}
		m.silent()
	}
}

// TestPublishUnknown: when nobody answers, publish says how many messages may be stored or not, what to do, and has an
// exit code for it.
func TestPublishUnknown(t *testing.T) {
	ctx, interrupt := context.WithCancel(t.Context())
	defer interrupt()
	ln, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	m := &mute{silent: interrupt}
	server := grpc.NewServer()
	pb.RegisterQueueServiceServer(server, m)
	pb.RegisterAdminServiceServer(server, m)
	go func() { _ = server.Serve(ln) }()
	defer server.Stop()
	var stdout, stderr bytes.Buffer
	code := execute(ctx, []string{"publish", "orders", "--addr", ln.Addr().String(), "one", "two", "three"},
		&environment{
			stdin: &bytes.Buffer{}, stdout: &stdout, stderr: &stderr,
			lookup: func(string) (string, bool) { return "", false },
		})
	require.Equal(t, exitUnknown, code, stderr.String())
	require.Contains(t, stderr.String(), "3 messages may or may not be stored")
	require.Contains(t, stderr.String(), "lockstep browse orders --from 1")
	require.Empty(t, stdout.String())
}
