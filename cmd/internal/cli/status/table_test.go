// SPDX-License-Identifier: Apache-2.0

package status

import (
	"bytes"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	"github.com/lockstep-mq/lockstep/cmd/internal/output"
	"github.com/lockstep-mq/lockstep/cmd/internal/pairstatus"
)

// The table fits 120 columns for any length of a reason. The full reason is printed exactly once.
func TestStatusFits(t *testing.T) {
	reason := "duplicate node identity: this node runs at 127.0.0.1:17420 already, or did when this process " +
		"started, which takes no part until it is started again. If this data directory is a copy, do not start it: " +
		"a second node starts with an empty one"
	failure := "status: " + strings.Repeat("x", 150)
	active := pairstatus.Node{
		Name: "a", Address: "node-a.example.com:7420", Role: "active", InSync: true, Term: 12,
		LogDurable: 1_234_567_890, Applied: 1_234_567_890,
		Queues: 1234, Messages: 123_456_789, Standby: "in-sync",
	}
	waiting := pairstatus.Node{Name: "b", Address: "127.0.0.1:17421", Role: "recovering", Reason: reason}
	gone := pairstatus.Node{Address: "127.0.0.1:17422", Error: failure}
	shown := func(s pairstatus.Status) string {
		var b bytes.Buffer
		p, err := output.New(&b, "table")
		require.NoError(t, err)
		require.NoError(t, printStatus(&cli.Env{Print: p}, s))
		return b.String()
	}

	text := shown(pairstatus.Status{Nodes: []pairstatus.Node{active, waiting, gone}})
	lines := strings.Split(text, "\n")
	for _, line := range lines[:5] { // header, rule, three nodes
		require.LessOrEqual(t, utf8.RuneCountInString(line), statusColumns, line)
	}
	require.Regexp(t, `^b .* duplicate.*…$`, lines[3])
	require.Regexp(t, `^\? .* status.*…$`, lines[4])
	require.Equal(t, []string{"a: standby in sync, 0 records behind", "b: " + reason, "127.0.0.1:17422: " + failure, ""},
		lines[5:])

	text = shown(pairstatus.Status{
		Nodes: []pairstatus.Node{waiting},
		Conditions: []pairstatus.Condition{{
			Condition: "not-serving", Severity: "critical",
			Details: "RECOVERING: " + reason,
		}},
	})
	require.Equal(t, 1, strings.Count(text, reason), "the condition reports it")

	text = shown(pairstatus.Status{Nodes: []pairstatus.Node{{
		Name: "a", Address: "127.0.0.1:7420", Role: "active",
		Standby: "in-sync",
	}}})
	require.Contains(t, text, "standby in sync, 0 records behind\n", "text that fits is not truncated")
	require.NotContains(t, text, "…")
}

func TestTruncateNote(t *testing.T) {
	for _, c := range []struct {
		note, want string
		room       int
	}{
		{"short", "short", 5},
		{"waiting for the coordinator: it is unreachable", "waiting for the coordinator…", 30},
		{"one two three", "one two…", 10},
		{strings.Repeat("ä", 20), strings.Repeat("ä", 9) + "…", 10},
	} {
		require.Equal(t, c.want, truncateNote(c.note, c.room))
	}
}
