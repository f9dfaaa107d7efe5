// SPDX-License-Identifier: Apache-2.0

package message_test

import (
	"bytes"
	"context"
	"net"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	"github.com/lockstep-mq/lockstep/cmd/internal/clitest"
	"github.com/lockstep-mq/lockstep/cmd/internal/commands"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// silentNode is an active node that accepts publishes and never responds.
type silentNode struct {
	pb.UnimplementedQueueServiceServer
	pb.UnimplementedAdminServiceServer
	messages int // number of messages after which it calls silent
	silent   func()
}

func (m *silentNode) WatchStatus(_ *pb.WatchStatusRequest, s grpc.ServerStreamingServer[pb.WatchStatusResponse]) error {
	if err := s.Send(&pb.WatchStatusResponse{Status: &pb.GetStatusResponse{Role: pb.Role_ROLE_ACTIVE_ALONE}}); err != nil {
		return err
	}
	<-s.Context().Done()
	return nil
}

func (m *silentNode) GetStatus(context.Context, *pb.GetStatusRequest) (*pb.GetStatusResponse, error) {
	return &pb.GetStatusResponse{Role: pb.Role_ROLE_ACTIVE_ALONE}, nil
}

func (m *silentNode) PublishStream(s pb.QueueService_PublishStreamServer) error {
	for received := 0; ; {
		r, err := s.Recv()
		if err != nil {
			return err
		}
		received += len(r.GetPublish().GetMessages())
		for _, more := range r.GetMore() {
			received += len(more.GetPublish().GetMessages())
		}
		if received >= m.messages {
			m.silent()
		}
	}
}

// If no node responds, publish reports the number of messages with an unknown outcome and a hint. It has a separate
// exit code.
func TestPublishUnknown(t *testing.T) {
	ctx, interrupt := context.WithCancel(t.Context())
	defer interrupt()
	ln, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	m := &silentNode{messages: 3, silent: interrupt}
	server := grpc.NewServer()
	pb.RegisterQueueServiceServer(server, m)
	pb.RegisterAdminServiceServer(server, m)
	go func() { _ = server.Serve(ln) }()
	defer server.Stop()
	var stdout, stderr bytes.Buffer
	code := commands.Run(ctx, []string{"publish", "orders", "--addr", ln.Addr().String(), "one", "two", "three"},
		clitest.CLI{}.Process(&bytes.Buffer{}, &stdout, &stderr))
	require.Equal(t, cli.ExitUnknown, code, stderr.String())
	require.Contains(t, stderr.String(), "3 messages")
	require.Contains(t, stderr.String(), "--from 1")
	require.Empty(t, stdout.String())
}

// A line that exceeds the maximum message size is rejected with a readable error.
func TestLongLine(t *testing.T) {
	t.Parallel()
	_, c := clitest.StartNodes(t, true)
	_, stderr, code := c.Run("short\n"+strings.Repeat("x", (64<<20)+1), "publish", "q", "--create")
	require.Equal(t, cli.ExitError, code)
	require.Contains(t, stderr, "line 2")
	require.Contains(t, stderr, "64.0 MiB")
	require.NotContains(t, stderr, "bufio")
}

// A queue with a dedup window stores one message per message ID.
func TestPublishDuplicate(t *testing.T) {
	t.Parallel()
	_, c := clitest.StartNodes(t, true)
	c.OK("queue", "create", "orders", "--dedup-window", "10m", "--dedup-max", "1000")
	c.OK("publish", "orders", "first", "--message-id", "m-1")
	c.OK("publish", "orders", "again", "--message-id", "m-1")
	again := c.Lines("publish", "orders", "again", "--message-id", "m-1", "--output", "json")[0]
	require.EqualValues(t, 1, again["sequence"])
	require.Equal(t, true, again["duplicate"])
	c.OK("queue", "show", "orders")
	shown := c.Lines("queue", "show", "orders", "--output", "json")[0]
	require.EqualValues(t, 1, shown["messages"])
	require.EqualValues(t, 2, shown["duplicates"])
	c.OK("queue", "alter", "orders", "--dedup-window", "0")
	later := c.Lines("publish", "orders", "again", "--message-id", "m-1", "--output", "json")[0]
	require.EqualValues(t, 2, later["sequence"])
}

// The fields set by flags appear in the output of consume and browse, and in the files.
func TestPublishFields(t *testing.T) {
	t.Parallel()
	_, c := clitest.StartNodes(t, true)
	c.OK("publish", "orders", "--create", "{}", "--message-id", "m-1", "--correlation-id", "c-1", "--reply-to", "answers",
		"--content-type", "application/json", "--subject", "order", "-p", "region=eu", "--typed-property", "total=12.5",
		"--typed-property", "count=-7", "--typed-property", "paid=true")
	require.Contains(t, c.OK("browse", "orders"), "message-id: m-1 correlation-id: c-1 reply-to: answers "+
		"content-type: application/json subject: order count=-7 paid=true region=eu total=12.5")
	m := c.Lines("consume", "orders", "-f", "-n", "1", "--output", "json")[0]
	for k, want := range map[string]any{
		"message_id": "m-1", "correlation_id": "c-1", "reply_to": "answers", "content_type": "application/json",
		"subject": "order", "properties": map[string]any{"region": "eu"},
		"typed_properties": map[string]any{"total": 12.5, "count": -7.0, "paid": true},
	} {
		require.Equal(t, want, m[k], k)
	}
	for _, wrong := range []string{"k", "=1", "k=text", "k=", "k=TRUE"} {
		_, stderr, code := c.Run("", "publish", "orders", "x", "--typed-property", wrong)
		require.Equal(t, cli.ExitUsage, code, wrong)
		require.Contains(t, stderr, "--typed-property", wrong)
	}
}

// Published and consumed messages of a partitioned queue have the partition to which their sequence belongs.
func TestPublishPartitioned(t *testing.T) {
	t.Parallel()
	_, c := clitest.StartNodes(t, true)
	c.OK("queue", "create", "orders", "--partitions", "2")
	partition := client.PartitionName("orders", client.Partition("a", 2), 2)
	require.Contains(t, c.OK("publish", "orders", "1", "2", "--group", "a"), partition)
	r := c.Lines("publish", "orders", "3", "--group", "a", "--output", "json")[0]
	require.Equal(t, partition, r["partition"])
	require.EqualValues(t, 3, r["sequence"])
	consumed := c.Lines("consume", "orders", "--count", "3", "--output", "json")
	require.Len(t, consumed, 3)
	for i, m := range consumed {
		require.Equal(t, "orders", m["queue"])
		require.Equal(t, partition, m["partition"])
		require.EqualValues(t, i+1, m["sequence"])
	}
	published := c.OK(slices.Concat([]string{"publish", "orders"}, slices.Repeat([]string{"5"}, 40))...)
	require.Contains(t, published, "2 partitions")
}
