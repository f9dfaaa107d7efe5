// SPDX-License-Identifier: Apache-2.0

//go:build unix

package cluster

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// nextEvent parses the name and the fields of a log line. An incomplete line is not an event.
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

// The failover or node packages log each event name. Otherwise, a test that waits for the event would time out.
func TestEventNamesAreLogged(t *testing.T) {
	var source strings.Builder
	for _, pattern := range []string{"../../failover/*.go", "../../server/node/*.go"} {
		files, err := filepath.Glob(pattern)
		require.NoError(t, err)
		for _, name := range files {
			if strings.HasSuffix(name, "_test.go") {
				continue
			}
			b, err := os.ReadFile(name)
			require.NoError(t, err)
			source.Write(b)
		}
	}
	for _, name := range []string{EventRole, EventDropped, EventCondition} {
		require.Contains(t, source.String(), strconv.Quote(name), "not logged")
	}
}
