// SPDX-License-Identifier: Apache-2.0

//go:build unix

package demo

import (
	"context"
	"io"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/client/admin"
	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/test/harness"
)

// A directory with one pair becomes a fleet of two pairs. Queues created through the first pair are placed on both.
func TestDevPairs(t *testing.T) {
	var free [2]string
	for i := range free {
		port, err := harness.ReservePort()
		require.NoError(t, err)
		require.NoError(t, port.Close())
		free[i] = port.Address()
	}
	f := devFlags{dir: t.TempDir(), coordinator: "etcd", listen: free}
	for _, f.pairs = range []int{1, 2} {
		pairs, err := f.start(t.Context())
		require.NoError(t, err)
		owners := runFleet(t, pairs)
		for _, p := range pairs {
			require.Positive(t, owners[p.Dir], "%v", owners)
		}
	}
}

// runFleet runs dev, and creates queues when it is ready.
func runFleet(t *testing.T, pairs []devPair) (owners map[string]int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var failed error
	stdout := &watched{want: "kill -9", seen: func() {
		defer cancel()
		owners, failed = createQueues(ctx, pairs)
	}}
	require.NoError(t, dev(ctx, &cli.Env{Process: cli.Process{Stdout: stdout, Stderr: io.Discard}}, pairs, 0))
	require.NoError(t, failed)
	return owners
}

// createQueues creates 40 queues through the first pair, and counts the queues of each pair.
func createQueues(ctx context.Context, pairs []devPair) (owners map[string]int, err error) {
	c, err := client.Open(ctx, "lockstep://"+strings.Join(pairs[0].pair.Addresses(), ","))
	if err != nil {
		return nil, err
	}
	defer func() { _ = c.Close() }()
	for i := range 40 {
		name := "queue-" + strconv.Itoa(len(pairs)) + "-" + strconv.Itoa(i)
		if _, _, err := admin.New(c).CreateQueue(ctx, name, admin.CreateQueueOptions{}); err != nil {
			return nil, err
		}
	}
	owners = map[string]int{}
	for i := range pairs {
		active, err := pairs[i].pair.WaitActive(ctx)
		if err != nil {
			return nil, err
		}
		all, err := pb.NewQueueServiceClient(active.Conn()).ListQueues(ctx, &pb.ListQueuesRequest{})
		if err != nil {
			return nil, err
		}
		owners[pairs[i].Dir] = len(all.GetQueues())
	}
	return owners, nil
}
