// SPDX-License-Identifier: Apache-2.0

//go:build unix

package cluster

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/test/harness/historycheck"
)

// parse detects a lost, added or changed attribute of a message.
func TestParseMessage(t *testing.T) {
	w := &Workload{}
	id := historycheck.ID{Producer: 1, N: describedEvery}
	good := w.message(id, 100)
	require.NotEmpty(t, good.Values)
	got, err := w.parse(good)
	require.NoError(t, err)
	require.Equal(t, id, got)
	for name, change := range map[string]func(m *client.Message){
		"lost":    func(m *client.Message) { m.Subject = "" },
		"changed": func(m *client.Message) { m.CorrelationID += "0" },
		"added":   func(m *client.Message) { m.ReplyTo = "another" },
		"type":    func(m *client.Message) { m.Values = map[string]any{"n": float64(id.N)} },
	} {
		bad := w.message(id, 100)
		change(&bad)
		_, err := w.parse(bad)
		require.ErrorIs(t, err, historycheck.ErrBody, name)
	}
	for _, plain := range []historycheck.ID{
		{Producer: 1, N: describedEvery + 1}, {Producer: firstSideClient, N: describedEvery},
	} {
		m := w.message(plain, 100)
		require.Equal(t, client.Message{Body: m.Body}, m)
		m.Subject = "added"
		_, err := w.parse(m)
		require.ErrorIs(t, err, historycheck.ErrBody)
	}
	w.opts.Plain = true
	require.Empty(t, w.message(id, 100).Values)
}
