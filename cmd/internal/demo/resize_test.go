// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The first event names the coordinator of the pair.
func TestResizeNamesCoordinator(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file") // not a directory, so that no process is started
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	for _, raft := range []bool{false, true} {
		var out strings.Builder
		o := Options{Dir: filepath.Join(file, "dir"), Raft: raft, Screen: NewScreen(&out, false)}
		_, err := Resize(t.Context(), ResizeOptions{Options: o, NoKill: true})
		require.Error(t, err)
		require.Equal(t, !raft, strings.Contains(out.String(), "etcd"), out.String())
		require.Equal(t, raft, strings.Contains(out.String(), "witness"), out.String())
	}
}
