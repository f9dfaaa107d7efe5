package main

import (
	"bytes"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/cmd/lockstep/internal/out"
)

// TestMaintainingRole: people see that a standby rewrites; programs get the role that counts, and what is done, apart.
func TestMaintainingRole(t *testing.T) {
	for operation, want := range map[string]string{
		"": "standby", "scan": "standby", "backup": "standby",
		"rewrite": "maintaining (standby)",
	} {
		n := nodeJSON{Role: "standby"}
		if operation != "" {
			n.Maintenance = &maintenanceJSON{Operation: operation, Phase: "copy", DoneBytes: 1, TotalBytes: 4}
			require.Equal(t, operation+": copy 25%", n.Maintenance.String())
		}
		require.Equal(t, want, n.shownRole())
		require.Equal(t, "standby", n.Role)
	}
}

// TestStatusSaysWhatOperatorsDid: a forced failover that is not settled, and when the role goes back.
func TestStatusSaysWhatOperatorsDid(t *testing.T) {
	var b bytes.Buffer
	p, err := out.New(&b, "table")
	require.NoError(t, err)
	a := &app{print: p}
	s := statusJSON{Pair: &pairJSON{}, Nodes: []nodeJSON{{NodeID: "1", Name: "b"}}}
	require.NoError(t, a.printChanges(s))
	require.Empty(t, b.String())
	s.Pair.Forced = &forcedJSON{By: "ann@desk", Reason: "a burnt down", NodeID: "1", AfterLSN: 7}
	s.Pair.FailbackAt = time.Now().Add(90 * time.Second)
	require.NoError(t, a.printChanges(s))
	require.Contains(t, b.String(), "FORCED: node b was made active")
	require.Contains(t, b.String(), "by ann@desk")
	require.Contains(t, b.String(), "after LSN 7")
	require.Contains(t, b.String(), "(a burnt down)")
	require.Contains(t, b.String(), "failback to the preferred node in 1m")
	same := *s.Pair.Forced
	before := s.fingerprint()
	s.Pair.Forced = &same
	require.Equal(t, before, s.fingerprint(), "only what is in it counts")
	b.Reset()
	s.Pair.Forced.Settled, s.Pair.FailbackAt = true, time.Time{}
	require.NoError(t, a.printChanges(s))
	require.Empty(t, b.String())
}
