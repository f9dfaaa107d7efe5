// SPDX-License-Identifier: Apache-2.0

package status

import (
	"bytes"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	"github.com/lockstep-mq/lockstep/cmd/internal/output"
	"github.com/lockstep-mq/lockstep/cmd/internal/pairstatus"
)

// status shows an unresolved forced failover, and the time of the failback.
func TestStatusReportsOperatorActions(t *testing.T) {
	var b bytes.Buffer
	p, err := output.New(&b, "table")
	require.NoError(t, err)
	env := &cli.Env{Print: p}
	s := pairstatus.Status{Pair: &pairstatus.Pair{}, Nodes: []pairstatus.Node{{NodeID: "1", Name: "b"}}}
	require.NoError(t, printChanges(env, s))
	require.Empty(t, b.String())
	s.Pair.Forced = &pairstatus.Forced{By: "ann@desk", Reason: "a burnt down", NodeID: "1", AfterLSN: 7}
	s.Pair.FailbackAt = time.Now().Add(90 * time.Second)
	require.NoError(t, printChanges(env, s))
	require.Contains(t, b.String(), "FORCED: ")
	require.Contains(t, b.String(), "node b ")
	require.Contains(t, b.String(), "ann@desk")
	require.Contains(t, b.String(), "after LSN 7")
	require.Contains(t, b.String(), "(a burnt down)")
	require.Contains(t, b.String(), "in 1m")
	same := *s.Pair.Forced
	before := s.Fingerprint()
	s.Pair.Forced = &same
	require.Equal(t, before, s.Fingerprint(), "only its contents count")
	b.Reset()
	s.Pair.Forced.Settled, s.Pair.FailbackAt = true, time.Time{}
	require.NoError(t, printChanges(env, s))
	require.Empty(t, b.String())
}

func TestRates(t *testing.T) {
	look := func(role string, commit, messages uint64) *pairstatus.Status {
		return &pairstatus.Status{Nodes: []pairstatus.Node{{
			Name: "a", NodeID: "1", Role: role, Commit: commit, Messages: messages,
			MessageBytes: 2048,
		}}}
	}
	require.Equal(t, "\nnode a: 50/s transactions, -5/s message growth, 2.0 KiB stored\n",
		rates(look("active", 100, 20), look("active-alone", 200, 10), 2*time.Second))
	require.Empty(t, rates(nil, look("active", 1, 1), time.Second))
	require.Empty(t, rates(look("standby", 1, 1), look("active", 1, 1), time.Second))
}

// Each condition is printed with its meaning and the recommended action.
func TestPrintConditions(t *testing.T) {
	var b bytes.Buffer
	p, err := output.New(&b, "table")
	require.NoError(t, err)
	require.NoError(t, printConditions(&cli.Env{Print: p}, []pairstatus.Condition{{
		Condition: "disk-low", Severity: "critical", Node: "b", Since: time.Unix(1_700_000_000, 0),
		Details: "just now", Meaning: "That means.", Do: "Do this.",
	}}))
	require.Regexp(t, `^CRITICAL disk-low on b since [-0-9: ]+: just now\n  That means.\n  Do this.\n$`, b.String())
}
