// SPDX-License-Identifier: Apache-2.0

package config_test

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// The fleet uses the etcd of the coordinator by default. Another coordinator requires endpoints.
func TestFleetEndpoints(t *testing.T) {
	c, err := load(t, "", nil, []string{"--coordinator-etcd-endpoints=a:1", "--fleet-pair=x"})
	require.NoError(t, err)
	require.Equal(t, []string{"a:1"}, c.FleetEndpoints())
	require.True(t, c.UsesEtcd())

	c, err = load(t, "", nil, []string{
		"--coordinator-type=none", "--fleet-pair=x", "--fleet-endpoints=b:1,b:2", "--fleet-labels=zone=a,disk=b=c",
	})
	require.NoError(t, err)
	require.Equal(t, []string{"b:1", "b:2"}, c.FleetEndpoints())
	require.Equal(t, map[string]string{"zone": "a", "disk": "b=c"}, c.Fleet.Map())
	require.True(t, c.UsesEtcd())

	c, err = load(t, "", nil, []string{"--coordinator-type=none"})
	require.NoError(t, err)
	require.Empty(t, c.FleetEndpoints())
	require.False(t, c.UsesEtcd())
}
