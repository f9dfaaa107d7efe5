// SPDX-License-Identifier: Apache-2.0

package message

import (
	"bytes"
	"context"
	"errors"
	"net"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// A request that exceeds the limit of standard input is rejected, and not truncated.
func TestLongRequest(t *testing.T) {
	input := make([]byte, maxLineBytes+1)
	env := &cli.Env{Process: cli.Process{Stdin: bytes.NewReader(input)}}
	_, err := requestBody(env, nil, "")
	require.Contains(t, err.Error(), "64.0 MiB")
	env.Stdin = bytes.NewReader(input[:maxLineBytes])
	body, err := requestBody(env, nil, "")
	require.NoError(t, err)
	require.Len(t, body, maxLineBytes)
}

// A line may be as long as a message. The lines before a longer one are sent.
func TestLongLine(t *testing.T) {
	long := strings.Repeat("x", maxLineBytes)
	for name, tc := range map[string]struct {
		input string
		want  []int // lengths of the sent messages
		fails bool
	}{
		"longest":       {"a\r\n" + long + "\r\nb\r\n", []int{1, maxLineBytes, 1}, false},
		"too long":      {"a\n" + long + "x\nb\n", []int{1}, true},
		"much too long": {"a\n" + long + "xxx\nb\n", []int{1}, true},
	} {
		var sent []int
		err := sendLines(strings.NewReader(tc.input), func(b []byte) error {
			sent = append(sent, len(b))
			return nil
		})
		require.Equal(t, tc.want, sent, name)
		require.Equal(t, tc.fails, err != nil, name)
	}
}

// activeNode is a fake active node. It calls received for each CreateQueue, and does not respond to it.
type activeNode struct {
	pb.UnimplementedAdminServiceServer
	pb.UnimplementedQueueServiceServer

	address  string
	received func()
}

func (n *activeNode) status() *pb.GetStatusResponse {
	self := &pb.NodeStatus{NodeId: "a", Name: "a", Address: n.address, Active: true, InSync: true, Live: true}
	return &pb.GetStatusResponse{
		Node: self, Role: pb.Role_ROLE_ACTIVE_ALONE, Pair: &pb.PairStatus{Term: 1, Nodes: []*pb.NodeStatus{self}},
	}
}

func (n *activeNode) GetStatus(context.Context, *pb.GetStatusRequest) (*pb.GetStatusResponse, error) {
	return n.status(), nil
}

func (n *activeNode) WatchStatus(_ *pb.WatchStatusRequest, s grpc.ServerStreamingServer[pb.WatchStatusResponse]) error {
	if err := s.Send(&pb.WatchStatusResponse{Status: n.status()}); err != nil {
		return err
	}
	<-s.Context().Done()
	return nil
}

func (n *activeNode) CreateQueue(ctx context.Context, _ *pb.CreateQueueRequest) (*pb.CreateQueueResponse, error) {
	n.received()
	<-ctx.Done()
	return nil, ctx.Err()
}

// If the outcome of creating the reply queue is unknown, the request was certainly not published.
func TestRequestWithoutReplyQueue(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	n := &activeNode{address: listener.Addr().String(), received: cancel}
	server := grpc.NewServer()
	pb.RegisterAdminServiceServer(server, n)
	pb.RegisterQueueServiceServer(server, n)
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	defer func() {
		server.Stop()
		require.NoError(t, <-served)
	}()
	c, err := client.OpenWith(t.Context(), client.Options{Addresses: []string{n.address}})
	require.NoError(t, err)
	defer func() { require.NoError(t, c.Close()) }()
	err = request(ctx, &cli.Env{}, c, "orders", client.Message{}, nil)
	require.ErrorIs(t, err, context.Canceled)
	require.NotErrorIs(t, err, client.ErrOutcomeUnknown)
}

// The outcome of a request is the outcome of its publish.
func TestOutcomeOfRequest(t *testing.T) {
	refused := &client.Error{Message: "refused"}
	unknown := errors.Join(refused, client.ErrOutcomeUnknown)
	require.NoError(t, outcomeOf(nil, nil))
	require.ErrorIs(t, outcomeOf(unknown, unknown), client.ErrOutcomeUnknown)
	require.ErrorIs(t, outcomeOf(errors.Join(unknown, refused), unknown), client.ErrOutcomeUnknown)
	err := outcomeOf(unknown, nil)
	require.NotErrorIs(t, err, client.ErrOutcomeUnknown)
	require.ErrorIs(t, err, error(refused))
	require.NotErrorIs(t, outcomeOf(err, nil), client.ErrOutcomeUnknown)
	found, ok := errors.AsType[*client.Error](err)
	require.True(t, ok)
	require.Same(t, refused, found)
}
