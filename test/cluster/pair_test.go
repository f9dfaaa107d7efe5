// SPDX-License-Identifier: Apache-2.0

//go:build unix

package cluster

import (
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A pair writes the configuration of its nodes, starts, signals and restarts them, and stops and restarts etcd. The
// nodes are shell scripts.
func TestPairWithFakeBinary(t *testing.T) {
	dir := t.TempDir()
	binary := filepath.Join(dir, "fake")
	script := "#!/bin/sh\ntrap 'echo ended; exit 0' TERM\necho started \"$@\"\nwhile :; do sleep 0.02; done\n"
	require.NoError(t, os.WriteFile(binary, []byte(script), 0o700))
	p, err := Start(t.Context(), Options{
		Binary: binary, Dir: dir, Links: true,
		Settings: map[string]string{"wal.keep-bytes": "1MiB"},
	})
	require.NoError(t, err)
	closed := false
	defer func() {
		if !closed {
			_ = p.Close()
		}
	}()

	config, err := os.ReadFile(p.A.ConfigFile())
	require.NoError(t, err)
	advertised := regexp.MustCompile(`advertise: "(.*)"`).FindSubmatch(config)
	require.NotNil(t, advertised)
	require.NotEqual(t, p.A.Address, string(advertised[1]))
	require.Equal(t, p.A.Address, p.BypassLink(string(advertised[1])), "address of the node behind the link")
	require.Contains(t, string(config), "coordinator:\n  etcd:\n    endpoints: \"")
	require.Contains(t, string(config), "wal:\n  keep-bytes: \"1MiB\"")

	logged := func(n *Node) string {
		b, err := os.ReadFile(n.LogFile())
		require.NoError(t, err)
		return string(b)
	}
	require.Eventually(t, func() bool { return len(logged(p.A)) > 0 && len(logged(p.B)) > 0 }, time.Minute,
		pollInterval)
	require.Contains(t, logged(p.A), "serve --config "+p.A.ConfigFile())
	require.NoError(t, p.A.Pause())
	require.NoError(t, p.A.Wake())
	require.NoError(t, p.A.Stop())
	require.Contains(t, logged(p.A), "ended")
	require.ErrorIs(t, p.A.Kill(), ErrNotRunning)
	require.NoError(t, p.A.Start())
	require.Error(t, p.A.Start(), "started twice")
	require.NoError(t, p.B.Pause())
	require.NoError(t, p.B.Kill(), "paused process")

	health := func() error {
		resp, err := http.Get("http://" + p.EtcdOf(p.A.Node) + "/health")
		if err != nil {
			return err
		}
		_, err = io.Copy(io.Discard, resp.Body)
		return errors.Join(err, resp.Body.Close())
	}
	require.NoError(t, health())
	require.NoError(t, p.StopEtcd())
	require.Error(t, health())
	require.NoError(t, p.StartEtcd(t.Context()))
	require.NoError(t, health())
	closed = true
	require.NoError(t, p.Close())
}
