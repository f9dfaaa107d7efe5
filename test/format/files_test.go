// SPDX-License-Identifier: Apache-2.0

package format

import (
	"archive/zip"
	"bytes"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/store/vfs"
	"github.com/lockstep-mq/lockstep/test/vfs/memfs"
)

// maxFileBytes limits the size of a file of the scenario.
const maxFileBytes = 64 << 20

// pieceFile returns the path of the snapshot piece at an offset in the page file.
func pieceFile(at uint64) string { return path.Join(snapshotDir, fmt.Sprintf("%012d.piece", at)) }

func read(t *testing.T, fsys vfs.FS, name string) []byte {
	t.Helper()
	data, err := vfs.ReadFile(fsys, name, maxFileBytes)
	require.NoError(t, err)
	return data
}

// names returns the names of the files below a directory, sorted.
func names(t *testing.T, fsys vfs.FS, dir string) (files []string) {
	t.Helper()
	entries, err := fsys.ReadDir(dir)
	require.NoError(t, err)
	for _, e := range entries {
		name := path.Join(dir, e)
		info, err := fsys.Stat(name)
		require.NoError(t, err)
		if info.IsDir {
			files = append(files, names(t, fsys, name)...)
		} else {
			files = append(files, name)
		}
	}
	return files
}

// pack returns an archive of the files. Equal files give equal archives.
func pack(t *testing.T, fsys vfs.FS) []byte {
	t.Helper()
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	for _, name := range names(t, fsys, "/") {
		w, err := z.Create(strings.TrimPrefix(name, "/"))
		require.NoError(t, err)
		_, err = w.Write(read(t, fsys, name))
		require.NoError(t, err)
	}
	require.NoError(t, z.Close())
	return b.Bytes()
}

// unpack returns a filesystem with the files of an archive written by pack.
func unpack(t *testing.T, name string) *memfs.FS {
	t.Helper()
	z, err := zip.OpenReader(name)
	require.NoError(t, err)
	defer func() { require.NoError(t, z.Close()) }()
	mem := memfs.New()
	for _, entry := range z.File {
		r, err := entry.Open()
		require.NoError(t, err)
		data, err := io.ReadAll(io.LimitReader(r, maxFileBytes))
		require.NoError(t, err)
		write(t, mem, "/"+entry.Name, data)
	}
	return mem
}

// copyFiles returns a copy of the filesystem, which the caller may modify.
func copyFiles(t *testing.T, fsys vfs.FS) *memfs.FS {
	t.Helper()
	mem := memfs.New()
	for _, name := range names(t, fsys, "/") {
		write(t, mem, name, read(t, fsys, name))
	}
	return mem
}

// write creates a file and its directory.
func write(t *testing.T, fsys vfs.FS, name string, data []byte) {
	t.Helper()
	require.NoError(t, fsys.MkdirAll(path.Dir(name), 0o700))
	f, err := fsys.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
	require.NoError(t, err)
	_, err = f.WriteAt(data, 0)
	require.NoError(t, err)
	require.NoError(t, f.Close())
}

// pieceOffset returns the offset in the name of a snapshot piece.
func pieceOffset(t *testing.T, name string) uint64 {
	t.Helper()
	at, err := strconv.ParseUint(strings.TrimSuffix(filepath.Base(name), ".piece"), 10, 64)
	require.NoError(t, err)
	return at
}
