// SPDX-License-Identifier: Apache-2.0

//go:build unix

package cluster

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// An incomplete line is not an event.
func TestNextEvent(t *testing.T) {
	log := []byte(`2026-11-28T04:00:00.000Z  INFO  failover  role changed  {"from": "STANDBY", "to": "ACTIVE", ` +
		`"reason": "a  {b}", "lsn": 17, "term": 3}` + "\n2026-11-28T04:00:00.000Z  WARN  no fields\n2026-11-28T04")
	e, next := nextEvent(log, 0)
	require.Equal(t, EventRole, e.Name)
	require.True(t, e.Is("to", "ACTIVE"))
	require.False(t, e.Is("to", "STANDBY"))
	require.False(t, e.Is("config", "1"))
	require.True(t, e.Is("reason", "a  {b}"))
	require.Equal(t, uint64(17), e.Number("lsn"))
	require.Zero(t, e.Number("from"))
	e, next = nextEvent(log, next)
	require.Equal(t, "no fields", e.Name)
	require.Empty(t, e.Fields)
	_, next = nextEvent(log, next)
	require.Zero(t, next, "the last line is incomplete")
}
