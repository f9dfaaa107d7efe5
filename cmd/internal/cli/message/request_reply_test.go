// SPDX-License-Identifier: Apache-2.0

package message_test

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	"github.com/lockstep-mq/lockstep/cmd/internal/cli/message"
	"github.com/lockstep-mq/lockstep/cmd/internal/clitest"
	"github.com/lockstep-mq/lockstep/cmd/internal/output"
)

// A request succeeds when its reply is printed, even if the reply cannot be acknowledged.
func TestRequestWithoutAck(t *testing.T) {
	t.Parallel()
	_, c := clitest.StartNodes(t, true)
	c.OK("queue", "create", "prices")
	open := func() *client.Client {
		cl, err := client.OpenWith(t.Context(), client.Options{Addresses: []string{c.Addr}})
		require.NoError(t, err)
		return cl
	}
	requester, service := open(), open()
	defer func() { require.NoError(t, service.Close()) }()
	requests, err := service.Consume(t.Context(), "prices", client.ConsumerOptions{})
	require.NoError(t, err)
	answered := make(chan error, 1)
	go func() {
		d, err := requests.Receive(t.Context())
		if err != nil {
			answered <- err
			return
		}
		p, err := service.NewProducer(t.Context(), client.ProducerOptions{})
		if err == nil {
			_, err = p.Publish(t.Context(), d.ReplyTo, client.Message{Body: []byte("42"), CorrelationID: d.CorrelationID})
		}
		answered <- err
	}()
	stdout := &clitest.WatchedWriter{Want: "42", Seen: func() { require.NoError(t, requester.Close()) }}
	var stderr bytes.Buffer
	env := &cli.Env{Process: c.Process(&bytes.Buffer{}, stdout, &stderr)}
	env.Print, err = output.New(stdout, "table")
	require.NoError(t, err)
	require.NoError(t, message.Request(t.Context(), env, requester, "prices", client.Message{Body: []byte("17")}))
	require.NoError(t, <-answered)
	require.Equal(t, "42\n", stdout.Text.String())
	require.NotEmpty(t, stderr.String())
}
