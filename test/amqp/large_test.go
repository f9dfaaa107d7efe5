// SPDX-License-Identifier: Apache-2.0

//go:build linux && deep

package amqp

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/Azure/go-amqp"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/test/harness"
)

const mib = 1 << 20

// Sizes of TestLargeMessages, and the parts of the memory limit in docs/explanation/memory.md.
const (
	largeConnections, largeEach, largeBody = 10, 2, 60_000_000

	ofBudget   = 128 * mib // harness.SmallNodes
	ofProgram  = 30 * mib
	ofListener = 256 * mib // large messages of all AMQP connections
	ofMessage  = 10 * largeBody
	margin     = 128 * mib // for overload: 736 to 972 MiB were measured in 8 runs with 15 processes per CPU
	activeMost = ofBudget + ofProgram + ofListener + ofMessage + margin
	leastPeak  = 64 * mib // a lower peak means that memory was not measured
)

// Ten connections each send two large messages at the same time. All messages are stored, no connection is closed, and
// the memory of the active stays below the documented limit.
func TestLargeMessages(t *testing.T) {
	w := newWorld(t, t.TempDir(), nil, func(o *harness.Options) { o.Raft = true })
	q := "large"
	w.create(t, &pb.CreateQueueRequest{Name: q})
	active, standby := w.inSync(t)
	body := make([]byte, largeBody)
	var senders errgroup.Group
	for range largeConnections {
		senders.Go(func() error {
			conn, err := amqp.Dial(t.Context(), "amqp://"+w.urls[active.Name], nil)
			if err != nil {
				return fmt.Errorf("connect: %w", err)
			}
			session, err := conn.NewSession(t.Context(), nil)
			if err != nil {
				return fmt.Errorf("open a session: %w", err)
			}
			sender, err := session.NewSender(t.Context(), q, nil)
			if err != nil {
				return fmt.Errorf("attach: %w", err)
			}
			for i := range largeEach {
				if err := sender.Send(t.Context(), amqp.NewMessage(body), nil); err != nil {
					return fmt.Errorf("send message %d of a connection: %w", i+1, err)
				}
			}
			return conn.Close()
		})
	}
	require.NoError(t, senders.Wait())
	require.EqualValues(t, largeConnections*largeEach, w.get(t, q).GetMessages())
	peak, other := peakMemory(t, active), peakMemory(t, standby)
	t.Logf("peak memory: active %d MiB of at most %d MiB, standby %d MiB", peak/mib, activeMost/mib, other/mib)
	require.Greater(t, peak, leastPeak)
	require.LessOrEqual(t, peak, activeMost)
	require.LessOrEqual(t, other, activeMost-ofListener)
}

// peakMemory returns the peak resident memory of a node in bytes.
func peakMemory(t *testing.T, n *harness.Node) int {
	t.Helper()
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", n.PID()))
	require.NoError(t, err)
	_, rest, ok := strings.Cut(string(raw), "VmHWM:")
	require.True(t, ok)
	kib, err := strconv.Atoi(strings.Fields(rest)[0])
	require.NoError(t, err)
	return kib << 10
}
