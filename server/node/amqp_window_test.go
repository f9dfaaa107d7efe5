// SPDX-License-Identifier: Apache-2.0

package node_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/amqp/wire"
)

// A client that grants credit but keeps its session window closed uses no CPU time on the node. When it opens the
// window, it receives all messages.
func TestAMQPClosedWindow(t *testing.T) { simulated(t, testAMQPClosedWindow) }

func testAMQPClosedWindow(t *testing.T) {
	const messages = 200 // messages of 32 KiB, more than the node buffers for a window
	n := startAlone(t, withAMQP)
	n.createQueue("q")
	for range messages {
		n.publish("q", strings.Repeat("x", 32<<10))
	}
	for name, mode := range map[string]wire.Symbol{"browser": "copy", "consumer": "move"} {
		section(t, name, func(t *testing.T) {
			p := openAMQP(t, n)
			require.Nil(t, p.receiver(0, "r", &wire.Source{Address: "q", DistributionMode: mode}))
			window := func(size uint32) {
				p.send(&wire.Flow{
					NextIncomingID: wire.Some(uint32(0)), IncomingWindow: size, OutgoingWindow: 1 << 20,
					Handle: wire.Some(uint32(0)), DeliveryCount: wire.Some(uint32(0)), LinkCredit: wire.Some(uint32(1000)),
				})
			}
			window(0)
			// Simulated time advances only while all goroutines are blocked, so this returns only if the node is idle.
			time.Sleep(10 * time.Second) //nolint:forbidigo // simulated time
			window(1 << 20)
			for range messages {
				p.receive()
			}
			require.NoError(t, p.conn.Close())
		})
	}
}
