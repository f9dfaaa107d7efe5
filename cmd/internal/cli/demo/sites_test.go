// SPDX-License-Identifier: Apache-2.0

//go:build unix

package demo

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/test/harness"
)

// The second site is the replica of the first one after the first start. The second start keeps the roles.
func TestDevSites(t *testing.T) {
	var free [3]string
	for i := range free {
		port, err := harness.ReservePort()
		require.NoError(t, err)
		require.NoError(t, port.Close())
		free[i] = port.Address()
	}
	f := devFlags{
		dir: t.TempDir(), coordinator: "etcd", listen: [2]string(free[:2]), site: true, listenSite: free[2],
		pairs: 1,
	}
	const primary, replica = pb.SiteRole_SITE_ROLE_PRIMARY, pb.SiteRole_SITE_ROLE_REPLICA
	token := filepath.Join(f.dir, "site-token")
	secret := ""
	for _, want := range [][]pb.SiteRole{{primary, replica}, {replica, primary}} {
		sites, err := f.start(t.Context())
		require.NoError(t, err)
		for i := range sites {
			sites[i].Standalone = true
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		var switched error
		stdout := &watched{want: "site promote", seen: func() {
			defer cancel()
			if want[0] == primary {
				c := pb.NewSiteServiceClient(sites[0].pair.Nodes[0].Conn())
				_, switched = c.SwitchSite(ctx, &pb.SwitchSiteRequest{To: "west"})
			}
		}}
		require.NoError(t, dev(ctx, &cli.Env{Process: cli.Process{Stdout: stdout, Stderr: io.Discard}}, sites, 0))
		require.NoError(t, switched)
		require.True(t, sites[0].connected)
		require.True(t, sites[1].connected)
		require.Equal(t, want, []pb.SiteRole{sites[0].role, sites[1].role})
		text, err := os.ReadFile(token)
		require.NoError(t, err)
		if secret != "" {
			require.Equal(t, secret, string(text))
		}
		secret = string(text)
	}
}

// The nodes of two sites never share an address.
func TestDevSitePorts(t *testing.T) {
	port, err := harness.ReservePort()
	require.NoError(t, err)
	require.NoError(t, port.Close())
	except := []string{port.Address()}
	free, err := freePorts(t.Context(), "--listen-site", port.Address(), 3, except)
	require.NoError(t, err)
	require.Len(t, free, 3)
	require.NotContains(t, free, port.Address())
	require.NotEqual(t, free[0], free[1])
	require.NotEqual(t, free[1], free[2])
}
