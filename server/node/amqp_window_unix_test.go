// SPDX-License-Identifier: Apache-2.0

//go:build unix

package node_test

import (
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/amqp/wire"
)

// TestAMQPClosedWindow: a client that takes messages and keeps its session's window closed costs the node no processor
// time while it does; once it opens the window, it gets all of them.
func TestAMQPClosedWindow(t *testing.T) {
	const messages = 200 // of 32 KiB, more than wait for a window
	n := startAlone(t, withAMQP)
	n.createQueue("q")
	for range messages {
		n.publish("q", strings.Repeat("x", 32<<10))
	}
	for name, mode := range map[string]wire.Symbol{"browser": "copy", "consumer": "move"} {
		t.Run(name, func(t *testing.T) {
			p := openAMQP(t, n)
			require.Nil(t, p.receiver(0, "r", &wire.Source{Address: "q", DistributionMode: mode}))
			window := func(size uint32) {
				p.send(&wire.Flow{
					NextIncomingID: wire.Some(uint32(0)), IncomingWindow: size, OutgoingWindow: 1 << 20,
					Handle: wire.Some(uint32(0)), DeliveryCount: wire.Some(uint32(0)), LinkCredit: wire.Some(uint32(1000)),
				})
			}
			window(0)
			<-time.After(100 * time.Millisecond) // it fills up
			const watched = 250 * time.Millisecond
			require.Eventually(t, func() bool {
				before := spent(t)
				<-time.After(watched)
				return spent(t)-before < watched/10
			}, 20*watched, time.Millisecond, "the node is at work all the time")
			window(1 << 20)
			for range messages {
				p.receive()
			}
			require.NoError(t, p.conn.Close())
		})
	}
}

// spent is the processor time of this process, which has the node, too.
func spent(t *testing.T) time.Duration {
	t.Helper()
	var r syscall.Rusage
	require.NoError(t, syscall.Getrusage(syscall.RUSAGE_SELF, &r))
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}
