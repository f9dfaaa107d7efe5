// SPDX-License-Identifier: Apache-2.0

package faultdisk_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/store/vfs"
	"github.com/lockstep-mq/lockstep/test/vfs/faultdisk"
)

func open(t *testing.T, d *faultdisk.Disk, name string) vfs.File {
	t.Helper()
	f, err := d.FS().OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
	require.NoError(t, err)
	t.Cleanup(func() { _ = f.Close() })
	return f
}

// Rules apply to matching operations, within their limits Skip, Every and Times. Hits counts the faults.
func TestRules(t *testing.T) {
	dir := t.TempDir()
	d := faultdisk.New(vfs.OS())
	f, other := open(t, d, filepath.Join(dir, "page.db")), open(t, d, filepath.Join(dir, "1.seg"))
	require.NoError(t, d.Set(faultdisk.State{Rules: []faultdisk.Rule{
		{Ops: []string{"sync"}, Files: "*.db", Skip: 1, Times: 2, Error: "EIO"},
		{Ops: []string{"write"}, Flip: true},
	}}))
	require.NoError(t, f.Sync(), "the first sync is skipped")
	require.ErrorIs(t, f.Sync(), syscall.EIO)
	require.NoError(t, other.Sync(), "the rule does not match this file")
	require.ErrorIs(t, f.Sync(), syscall.EIO)
	require.NoError(t, f.Sync(), "the rule fails at most two syncs")

	zeros := make([]byte, 100)
	_, err := f.WriteAt(zeros, 0)
	require.NoError(t, err)
	got := make([]byte, 100)
	_, err = f.ReadAt(got, 0)
	require.NoError(t, err)
	require.NotEqual(t, zeros, got)
	require.Equal(t, []uint64{2, 1}, d.Hits())
	require.NoError(t, d.Set(faultdisk.State{Rules: []faultdisk.Rule{{
		Ops: []string{"sync"}, Skip: 1, Every: 3,
		Error: "ENOSPC",
	}}}))
	for i := range 10 {
		err := f.Sync()
		require.Equal(t, i == 3 || i == 6 || i == 9, errors.Is(err, syscall.ENOSPC), "%d: %v", i, err)
	}
	require.NoError(t, d.Set(faultdisk.State{}))
	require.Empty(t, d.Hits())
}

// An operation that is blocked by a rule ends when the state is replaced, with the fault of the new state.
func TestStallEndsWithNextState(t *testing.T) {
	d := faultdisk.New(vfs.OS())
	f := open(t, d, filepath.Join(t.TempDir(), "a"))
	require.NoError(t, d.Set(faultdisk.State{Rules: []faultdisk.Rule{{Stall: true}}}))
	done := make(chan error, 1)
	go func() { done <- f.Sync() }()
	require.Eventually(t, func() bool { return d.Hits()[0] == 1 }, time.Minute, time.Millisecond)
	select {
	case <-done:
		t.Fatal("the operation did not block")
	default:
	}
	require.NoError(t, d.Set(faultdisk.State{Rules: []faultdisk.Rule{{Delay: time.Millisecond, Error: "EIO"}}}))
	require.ErrorIs(t, <-done, syscall.EIO, "fault of the new state")
}

// A PUT request sets a valid state, and is rejected for an invalid state. A GET request returns the hits.
func TestHTTPInterface(t *testing.T) {
	d := faultdisk.New(vfs.OS())
	name := filepath.Join(t.TempDir(), "a")
	f := open(t, d, name)
	server := httptest.NewServer(d)
	defer server.Close()
	put := func(state string) int {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPut, server.URL, bytes.NewBufferString(state))
		require.NoError(t, err)
		resp, err := http.DefaultClient.Do(req)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		return resp.StatusCode
	}
	require.Equal(t, http.StatusBadRequest, put(`{"rules":[{"error":"EPERM"}]}`))
	require.Equal(t, http.StatusBadRequest, put(`{"rules":[{"files":"["}]}`))
	require.Equal(t, http.StatusOK, put(`{"hold":true,"rules":[{"ops":["write"]}]}`))
	_, err := f.WriteAt([]byte("x"), 0)
	require.NoError(t, err)
	raw, err := os.ReadFile(name)
	require.NoError(t, err)
	require.Empty(t, raw)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL, nil)
	require.NoError(t, err)
	resp, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	var hits []uint64
	require.NoError(t, json.NewDecoder(resp.Body).Decode(&hits))
	require.NoError(t, resp.Body.Close())
	require.Equal(t, []uint64{1}, hits)
}

// A build without the tag links no test filesystem.
func TestNotLinkedWithoutTag(t *testing.T) {
	const program, forTests = "github.com/lockstep-mq/lockstep/cmd/lockstep", "lockstep/test/vfs/"
	deps := func(args ...string) string {
		out, err := exec.CommandContext(t.Context(), "go",
			append([]string{"list", "-deps"}, append(args, program)...)...).Output()
		require.NoError(t, err)
		return string(out)
	}
	require.NotContains(t, deps(), forTests)
	require.Contains(t, deps("-tags", faultdisk.Tag), forTests+"faultdisk\n")
}
