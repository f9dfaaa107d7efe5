// SPDX-License-Identifier: Apache-2.0

//go:build unix && deep

package amqp

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// A Spring application with Qpid JMS continues when the active is killed. Messages moved by its listener in transacted
// sessions are stored exactly once, and all messages sent by its template are stored. LOCKSTEP_SPRING is the command
// of Spring.java, to which the pair's URL is appended.
func TestSpring(t *testing.T) {
	command := program(t, "LOCKSTEP_SPRING")
	w := newWorld(t, t.TempDir(), nil, nil)
	for _, name := range []string{"spring.in", "spring.out", "spring.sent"} {
		w.create(t, &pb.CreateQueueRequest{Name: name})
	}
	const messages = 500
	var all []*pb.Message
	for i := range messages {
		all = append(all, &pb.Message{Body: fmt.Appendf(nil, "m%d", i), ContentType: "text/plain"})
	}
	_, err := w.queues(t).Publish(t.Context(), &pb.PublishRequest{Queue: "spring.in", Messages: all})
	require.NoError(t, err)
	url := fmt.Sprintf("failover:(amqp://%s,amqp://%s)?failover.maxReconnectAttempts=-1&failover.reconnectDelay=50"+
		"&jms.prefetchPolicy.all=20", w.urls["a"], w.urls["b"])
	cmd, in, lines := begin(t, append(command, url))
	killed := false
	sent := 0
	for sent < 50 && lines.Scan() {
		sent++
		if sent == 10 {
			active, _ := w.inSync(t)
			require.NoError(t, active.Kill())
			killed = true
		}
	}
	require.True(t, killed)
	require.Equal(t, 50, sent)
	eventually(t, "the listener has moved all messages", func() bool { return w.get(t, "spring.in").GetMessages() == 0 })
	require.NoError(t, in.Close())
	require.NoError(t, cmd.Wait())
	for queue, once := range map[string]bool{"spring.out": true, "spring.sent": false} {
		found := map[string]int{}
		for _, m := range w.stored(t, queue) {
			found[text(m)]++
		}
		want, letter := messages, "m"
		if !once {
			want, letter = 50, "s"
		}
		require.Len(t, found, want, queue)
		for i := range want {
			n := found[fmt.Sprint(letter, i)]
			require.True(t, n == 1 || n > 1 && !once, "%s has m%d %d times", queue, i, n)
		}
	}
	w.inSync(t)
	t.Logf("Spring: %d messages moved and 50 sent with a kill", messages)
}
