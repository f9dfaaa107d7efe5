// SPDX-License-Identifier: Apache-2.0

//go:build unix && deep

package s3

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"math/rand/v2"
	"path/filepath"
	"testing"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/server/objectstore/s3"
	"github.com/lockstep-mq/lockstep/store/backup"
)

// A directory satisfies the contract of backup.Objects.
func TestContractDirectory(t *testing.T) {
	contract(t, backup.Directory(nil, filepath.Join(t.TempDir(), "place")))
}

// A bucket satisfies the contract, with and without a prefix, and with versioning and object locks.
func TestContractServer(t *testing.T) {
	t.Run("prefix", func(t *testing.T) {
		s := startServer(t)
		s.makeBucket(minio.MakeBucketOptions{})
		contract(t, openStore(t, "a/b c", options(t, s.endpoint())))
		contract(t, openStore(t, "", options(t, s.endpoint())))
		tight := options(t, s.endpoint())
		tight.MemoryBytes = 1 // two buffers
		contract(t, openStore(t, "tight", tight))
	})
	t.Run("versions and locks", func(t *testing.T) {
		s := startServer(t, "--versioning-dir", t.TempDir())
		s.makeBucket(minio.MakeBucketOptions{ObjectLocking: true})
		contract(t, openStore(t, "locked", options(t, s.endpoint())))
	})
}

func content(n int) []byte {
	b := make([]byte, n)
	r := rand.NewChaCha8([32]byte{1})
	_, _ = r.Read(b)
	return b
}

func put(t *testing.T, store backup.Objects, name string, b []byte) error {
	t.Helper()
	return store.Put(t.Context(), name, backup.PutOptions{AboutBytes: uint64(len(b))}, func(w io.Writer) error {
		for rest := b; len(rest) > 0; {
			n := min(len(rest), 777_777)
			if _, err := w.Write(rest[:n]); err != nil {
				return err
			}
			rest = rest[n:]
		}
		return nil
	})
}

func get(t *testing.T, store backup.Objects, name string) []byte {
	t.Helper()
	o, err := store.Open(t.Context(), name)
	require.NoError(t, err)
	defer func() { require.NoError(t, o.Close()) }()
	size, err := o.SizeBytes()
	require.NoError(t, err)
	b, err := io.ReadAll(io.NewSectionReader(o, 0, size))
	require.NoError(t, err)
	return b
}

// contract checks an implementation of backup.Objects.
func contract(t *testing.T, store backup.Objects) {
	t.Helper()
	ctx := t.Context()
	lock, _, err := store.Lock(ctx)
	require.NoError(t, err)
	defer func() { require.NoError(t, lock.Close()) }()
	_, err = store.List(ctx, "none")
	require.ErrorIs(t, err, fs.ErrNotExist)
	_, err = store.Open(ctx, "none/x")
	require.ErrorIs(t, err, fs.ErrNotExist)
	require.NoError(t, store.Delete(ctx, "none/x"))
	require.NoError(t, store.Sweep(ctx, "none", time.Time{}))

	sizes := map[string]int{"set/empty": 0, "set/small": 100, "set/part": 5 << 20, "set/parts": 12<<20 + 345, "top": 3}
	for name, n := range sizes {
		require.NoError(t, put(t, store, name, content(n)), name)
		require.True(t, bytes.Equal(content(n), get(t, store, name)), name)
		require.ErrorIs(t, put(t, store, name, []byte("another")), fs.ErrExist, "an object is written only once")
		require.True(t, bytes.Equal(content(n), get(t, store, name)), name)
	}
	entries, err := store.List(ctx, "set")
	require.NoError(t, err)
	var names []string
	for _, e := range entries {
		require.Equal(t, int64(sizes["set/"+e.Name]), e.Bytes)
		require.False(t, e.Folder)
		names = append(names, e.Name)
	}
	require.Equal(t, []string{"empty", "part", "parts", "small"}, names)
	contractReads(t, store)

	// A failed upload leaves no object.
	broken := errors.New("broken")
	for _, n := range []int{10, 7 << 20} {
		err = store.Put(ctx, "set/failed", backup.PutOptions{}, func(w io.Writer) error {
			_, werr := w.Write(content(n))
			return errors.Join(werr, broken)
		})
		require.ErrorIs(t, err, broken)
		_, err = store.Open(ctx, "set/failed")
		require.ErrorIs(t, err, fs.ErrNotExist)
	}
	ended, cancel := context.WithCancel(ctx)
	cancel()
	err = store.Put(ended, "set/failed", backup.PutOptions{}, func(io.Writer) error { return nil })
	require.ErrorIs(t, err, context.Canceled)

	require.NoError(t, store.Move(ctx, "set/small", "other/small"))
	require.True(t, bytes.Equal(content(100), get(t, store, "other/small")))
	_, err = store.Open(ctx, "set/small")
	require.ErrorIs(t, err, fs.ErrNotExist)
	for _, name := range []string{"set/empty", "set/part", "set/parts", "other/small"} {
		require.NoError(t, store.Delete(ctx, name))
	}
	_, err = store.List(ctx, "set")
	require.ErrorIs(t, err, fs.ErrNotExist, "a folder without objects does not exist")
	require.NoError(t, store.Delete(ctx, "top"))
	available, err := store.Available(ctx)
	require.NoError(t, err)
	require.Positive(t, available)
}

// contractReads checks reads at arbitrary offsets.
func contractReads(t *testing.T, store backup.Objects) {
	t.Helper()
	o, err := store.Open(t.Context(), "set/parts")
	require.NoError(t, err)
	defer func() { require.NoError(t, o.Close()) }()
	want, r := content(12<<20+345), rand.New(rand.NewPCG(1, 1))
	for range 40 {
		off := r.IntN(len(want))
		b := make([]byte, 1+r.IntN([]int{64, 5000, 3 << 20}[r.IntN(3)]))
		n, err := o.ReadAt(b, int64(off))
		require.Equal(t, min(len(b), len(want)-off), n)
		require.True(t, bytes.Equal(want[off:off+n], b[:n]))
		if n < len(b) {
			require.ErrorIs(t, err, io.EOF)
		} else {
			require.NoError(t, err)
		}
	}
	_, err = o.ReadAt(make([]byte, 1), int64(len(want)))
	require.ErrorIs(t, err, io.EOF)
}

// Sweep removes unfinished uploads of crashed processes if the uploads are older than the given time.
func TestAbortedUploadsAreRemoved(t *testing.T) {
	s := startServer(t)
	s.makeBucket(minio.MakeBucketOptions{})
	store := openStore(t, "p", options(t, s.endpoint()))
	core := minio.Core{Client: s.client()}
	for _, key := range []string{"p/set/pages.pack", "p/other/pages.pack"} {
		id, err := core.NewMultipartUpload(t.Context(), bucket, key, minio.PutObjectOptions{})
		require.NoError(t, err)
		_, err = core.PutObjectPart(t.Context(), bucket, key, id, 1, bytes.NewReader(content(5<<20)), 5<<20,
			minio.PutObjectPartOptions{})
		require.NoError(t, err)
	}
	left := func() (keys []string) {
		for u := range core.ListIncompleteUploads(t.Context(), bucket, "", true) {
			require.NoError(t, u.Err)
			keys = append(keys, u.Key)
		}
		return keys
	}
	require.Len(t, left(), 2)
	require.NoError(t, store.Sweep(t.Context(), "set", time.Now().Add(-time.Hour)))
	require.Len(t, left(), 2, "newer uploads are kept")
	require.NoError(t, store.Sweep(t.Context(), "set", time.Time{}))
	require.Equal(t, []string{"p/other/pages.pack"}, left())
	require.NoError(t, store.Sweep(t.Context(), "", time.Time{}))
	require.Empty(t, left())
}

// Each error states the cause and the remedy, and contains no secret key.
func TestServerErrors(t *testing.T) {
	s := startServer(t)
	o := options(t, s.endpoint())
	o.RetryFor = 300 * time.Millisecond
	fails := func(o s3.Options, part string) {
		t.Helper()
		_, err := openStore(t, "p", o).List(t.Context(), "")
		require.ErrorIs(t, err, backup.ErrRemote)
		require.NotContains(t, err.Error(), "PLANTED")
		require.Contains(t, err.Error(), part)
	}
	fails(o, "bucket backups")
	s.makeBucket(minio.MakeBucketOptions{})
	_, err := openStore(t, "p", o).List(t.Context(), "")
	require.ErrorIs(t, err, fs.ErrNotExist)

	wrong := options(t, s.endpoint())
	wrong.SecretKeyFile = wrong.AccessKeyFile
	fails(wrong, "secret key")
	wrong = options(t, s.endpoint())
	wrong.AccessKeyFile = filepath.Join(t.TempDir(), "none")
	fails(wrong, "a key")
	secure := o
	secure.Endpoint = "https://" + s.addr
	fails(secure, "backup.s3.endpoint")
	t.Setenv("AWS_ACCESS_KEY_ID", "")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "")
	t.Setenv("HOME", t.TempDir())
	noKeys := o
	noKeys.AccessKeyFile, noKeys.SecretKeyFile = "", ""
	fails(noKeys, "backup.s3.access-key-file")
	t.Setenv("AWS_ACCESS_KEY_ID", accessKey)
	t.Setenv("AWS_SECRET_ACCESS_KEY", secretKey)
	_, err = openStore(t, "p", noKeys).List(t.Context(), "")
	require.ErrorIs(t, err, fs.ErrNotExist, "the keys come from the environment")
	s.kill()
	fails(o, "http://")
}
