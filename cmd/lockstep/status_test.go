package main

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestMaintainingRole: people see that a standby rewrites; programs get the role that counts, and what is done, apart.
func TestMaintainingRole(t *testing.T) {
	for operation, want := range map[string]string{"": "standby", "scan": "standby", "backup": "standby", "rewrite": "maintaining (standby)"} {
		n := nodeJSON{Role: "standby"}
		if operation != "" {
			n.Maintenance = &maintenanceJSON{Operation: operation, Phase: "copy", DoneBytes: 1, TotalBytes: 4}
			require.Equal(t, operation+": copy 25%", n.Maintenance.String())
		}
		require.Equal(t, want, n.shownRole())
		require.Equal(t, "standby", n.Role)
	}
}
