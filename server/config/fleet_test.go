// SPDX-License-Identifier: Apache-2.0

package config_test

import (
	"strings"
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

// Without a client certificate, a secret or the setting insecure, pairs on other hosts cannot authenticate this one.
func TestFleetToken(t *testing.T) {
	fleet := []string{"--coordinator-type=none", "--fleet-pair=x", "--fleet-endpoints=b:1"}
	for name, c := range map[string]struct {
		args    []string
		refused bool
	}{
		"local":       {fleet, false},
		"open":        {append(fleet, "--listen=0.0.0.0:7420", "--peer-token-file=p"), true},
		"token":       {append(fleet, "--listen=0.0.0.0:7420", "--peer-token-file=p", "--fleet-token-file=t"), false},
		"insecure":    {append(fleet, "--listen=0.0.0.0:7420", "--insecure"), false},
		"certificate": {append(fleet, "--listen=0.0.0.0:7420", "--tls-cert=c", "--tls-key=k", "--tls-ca=a"), false},
		"no fleet":    {[]string{"--coordinator-type=none", "--fleet-token-file=t"}, true},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := load(t, "", nil, c.args)
			require.Equal(t, c.refused, err != nil && strings.Contains(err.Error(), "fleet."), err)
		})
	}
}
