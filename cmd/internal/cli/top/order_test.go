// SPDX-License-Identifier: Apache-2.0

//go:build unix

package top_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/client/admin"
	"github.com/lockstep-mq/lockstep/cmd/internal/clitest"
)

// The active sorts and filters, and only a window of the queues is requested.
func TestWindowOfManyQueues(t *testing.T) {
	_, c := clitest.StartNodes(t, true)
	cl, err := client.OpenWith(t.Context(), client.Options{Addresses: []string{c.Addr}})
	require.NoError(t, err)
	defer func() { require.NoError(t, cl.Close()) }()
	for i := range 450 {
		_, _, err := admin.New(cl).CreateQueue(t.Context(), fmt.Sprintf("queue-%03d", i), admin.CreateQueueOptions{})
		require.NoError(t, err)
	}
	c.OK("publish", "queue-123", "one")
	s := show(t, c, 80, 24, nil, "--interval", "100ms")
	s.until("450 queues by messages (1 of 450)", "queue-123                               1")
	s.press("\x1b[F") // the End key
	s.until("(450 of 450)", "queue-449")
	s.press("<") // by name
	s.until("by name (1 of 450)", "queue-000")
	s.press("r")
	s.until("by name, reversed", "queue-449")
	s.press("/QUEUE-44\r")
	s.until("10 queues by name", "queue-440")
	s.press("q")
	s.ends()
}
