// SPDX-License-Identifier: Apache-2.0

//go:build unix && deep

package s3

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"filippo.io/age"
	"github.com/google/uuid"
	"github.com/minio/minio-go/v7"
	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/server/objectstore"
	"github.com/lockstep-mq/lockstep/server/objectstore/s3"
	"github.com/lockstep-mq/lockstep/store/backup"
	"github.com/lockstep-mq/lockstep/store/datadir"
	"github.com/lockstep-mq/lockstep/store/vfs"
	"github.com/lockstep-mq/lockstep/test/harness/faultproxy"
)

// eachLocation runs a test in a directory, which requires no server, and in a bucket.
func eachLocation(t *testing.T, run func(t *testing.T, open func(prefix string) backup.Objects)) {
	t.Helper()
	t.Run("directory", func(t *testing.T) {
		dir := t.TempDir()
		run(t, func(prefix string) backup.Objects { return backup.Directory(nil, in(dir, prefix)) })
	})
	t.Run("bucket", func(t *testing.T) {
		s := startServer(t)
		s.makeBucket(minio.MakeBucketOptions{})
		run(t, func(prefix string) backup.Objects { return openStore(t, prefix, options(t, s.endpoint())) })
	})
}

// A backup and the archived log can be restored to the end, to a record and to a time, from a directory and from a
// bucket. After two more generations, the oldest backup is removed.
func TestBackupsAndArchive(t *testing.T) {
	eachLocation(t, func(t *testing.T, open func(string) backup.Objects) { backupsAndArchive(t, open, nil, nil) })
}

// Encrypted backups and archives can be restored. A wrong or missing identity returns an error with the cause.
func TestEncryptedBackups(t *testing.T) {
	id, err := age.GenerateX25519Identity()
	require.NoError(t, err)
	seal, err := objectstore.ParseRecipients([]string{id.Recipient().String()})
	require.NoError(t, err)
	with, err := objectstore.ReadIdentities(identityFile(t, id))
	require.NoError(t, err)
	eachLocation(t, func(t *testing.T, open func(string) backup.Objects) {
		set := backupsAndArchive(t, open, seal, with)
		require.Equal(t, []string{id.Recipient().String()}, set.Manifest.Encryption.Recipients)
		other, err := age.GenerateX25519Identity()
		require.NoError(t, err)
		wrong, err := objectstore.ReadIdentities(identityFile(t, other))
		require.NoError(t, err)
		target := filepath.Join(t.TempDir(), "target")
		for want, with := range map[error]backup.Unsealer{backup.ErrEncrypted: nil, backup.ErrIdentity: wrong} {
			_, err = backup.Restore(t.Context(), set.Name, target, backup.RestoreOptions{Location: open("sets"), Unseal: with})
			require.ErrorIs(t, err, want)
			require.Contains(t, err.Error(), id.Recipient().String())
			require.NotContains(t, err.Error(), "AGE-SECRET")
			_, err = os.Stat(target)
			require.ErrorIs(t, err, os.ErrNotExist, "a failed restore must write nothing")
			_, err = backup.VerifyArchive(t.Context(), open("log"), with)
			require.ErrorIs(t, err, want)
		}
	})
}

func identityFile(t *testing.T, id *age.X25519Identity) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "identity")
	require.NoError(t, os.WriteFile(path, []byte("# a comment\n"+id.String()+"\n"), 0o600))
	return path
}

func backupsAndArchive(
	t *testing.T, open func(string) backup.Objects, seal backup.Sealer, with backup.Unsealer,
) (last backup.Set) {
	t.Helper()
	ctx := t.Context()
	d := openData(t, in(t.TempDir(), "data"))
	begin := func() *backup.Archiver {
		a, err := backup.StartArchiver(d.s, backup.ArchiveOptions{
			Location: open("log"), Seal: seal, Interval: time.Hour, FileBytes: 7 << 20,
		})
		require.NoError(t, err)
		return a
	}
	a := begin()
	o := backup.Options{Location: open("sets"), Archive: open("log"), Seal: seal, KeepGenerations: 2}
	d.publish(100)
	first, err := backup.Run(ctx, d.s, o)
	require.NoError(t, err)
	d.publish(100)
	require.NoError(t, a.Flush(ctx))
	require.NoError(t, a.Close())
	a = begin() // continues from the end of the first archiver
	d.publish(30)
	require.NoError(t, a.Flush(ctx))
	require.Equal(t, d.s.End(), a.Status().Last)
	end, all := d.s.End().LSN, contents(t, d.s)
	chains, err := backup.VerifyArchive(ctx, open("log"), with)
	require.NoError(t, err)
	require.Len(t, chains, 1)

	sets, err := backup.List(ctx, open("sets"))
	require.NoError(t, err)
	require.Len(t, sets, 1)
	require.True(t, sets[0].Complete)
	_, err = backup.Verify(ctx, first.Name, backup.VerifyOptions{Location: open("sets"), Unseal: with})
	require.NoError(t, err)
	ro := backup.RestoreOptions{Location: open("sets"), Archive: open("log"), Unseal: with, SegmentBytes: 4 << 20}
	for name, to := range map[string]struct {
		lsn uint64
		at  time.Time
	}{"end": {end, time.Time{}}, "record": {150, time.Time{}}, "time": {170, epoch().Add(169 * time.Second)}} {
		target := in(t.TempDir(), name)
		ro := ro
		if ro.ToTime = to.at; to.at.IsZero() {
			ro.ToLSN = to.lsn
		}
		_, err = backup.Restore(ctx, first.Name, target, ro)
		require.NoError(t, err, name)
		digest, at := restored(t, target)
		require.Equal(t, to.lsn, at, name)
		if name == "end" {
			require.Equal(t, all, digest)
		}
	}
	for range 2 {
		d.publish(10)
		require.NoError(t, a.Flush(ctx))
		last, err = backup.Run(ctx, d.s, o)
		require.NoError(t, err)
	}
	require.NoError(t, a.Close())
	sets, err = backup.List(ctx, open("sets"))
	require.NoError(t, err)
	require.Len(t, sets, 2)
	require.Equal(t, last.Name, sets[1].Name)
	files, err := open("log").List(ctx, "")
	require.NoError(t, err)
	require.False(t, strings.HasPrefix(files[0].Name, "00000000000000000001-"), "log before the oldest backup")
	return last
}

// The server is killed at points that are spread over the transferred bytes of backups and restores, and restarts
// before or after the client's retry limit. A backup that is listed as complete is complete, and a failed restore
// leaves no files.
func TestServerKilled(t *testing.T) {
	s := startServer(t)
	s.makeBucket(minio.MakeBucketOptions{})
	k := newKiller(t, s)
	d := openData(t, in(t.TempDir(), "data"))
	d.publish(320)
	location := openStore(t, "sets", options(t, "http://"+k.link.Address()))
	run := func(p *s3.Store) error {
		_, err := backup.Run(t.Context(), d.s, backup.Options{Location: p, KeepGenerations: 2})
		return err
	}
	for range 2 {
		require.NoError(t, run(location))
	}
	k.measure(func() { require.NoError(t, run(location)) })
	for i := range kills {
		d.commitSmall()
		k.during(i, run)
		sets, lerr := backup.List(t.Context(), location)
		require.NoError(t, lerr)
		whole := 0
		for _, set := range sets {
			if set.Complete {
				whole++
				_, err := backup.Verify(t.Context(), set.Name, backup.VerifyOptions{Location: location, ChecksumsOnly: true})
				require.NoError(t, err, "kill %d: %s is listed as complete", i, set.Name)
			}
		}
		require.Positive(t, whole)
	}
	want := contents(t, d.s)
	last, err := backup.Run(t.Context(), d.s, backup.Options{Location: location, KeepGenerations: 1})
	require.NoError(t, err)
	s.requireOnly(last.Name)

	target := in(t.TempDir(), "target")
	restore := func(p *s3.Store) error {
		_, err := backup.Restore(t.Context(), last.Name, target, backup.RestoreOptions{Location: p, SegmentBytes: 4 << 20})
		return err
	}
	k.measure(func() { require.NoError(t, restore(location)) })
	for i := range kills {
		require.NoError(t, os.RemoveAll(target))
		if err := k.during(i, restore); err != nil {
			require.ErrorIs(t, err, backup.ErrRemote)
			require.NoError(t, datadir.CheckRestore(vfs.OS(), target), "a restore to the same directory must be possible")
			require.NoError(t, restore(location))
		}
		got, _ := restored(t, target)
		require.Equal(t, want, got)
	}
}

// kills is the number of kills in each direction.
const kills = 20

// commitSmall makes a small change to the store.
func (d *data) commitSmall() { d.publish(1) }

// killer kills a server when operations have transferred a number of bytes.
type killer struct {
	*server
	link  *faultproxy.Relay
	bytes int64 // of a complete operation
}

func newKiller(t *testing.T, s *server) *killer {
	t.Helper()
	link, err := faultproxy.Listen(s.addr)
	require.NoError(t, err)
	t.Cleanup(func() { _ = link.Close() })
	return &killer{server: s, link: link}
}

// measure counts the bytes of a complete operation.
func (k *killer) measure(do func()) {
	before := k.link.Bytes()
	do()
	k.bytes = k.link.Bytes() - before
	k.t.Logf("an operation transfers %d bytes", k.bytes)
}

// during kills the server after i/kills of the bytes of do. If i is odd, it restarts the server immediately, and do
// must succeed, because it retries for minutes. Otherwise it restarts the server after do has returned, and do must
// fail, because it retries for only 100 ms.
func (k *killer) during(i int, do func(p *s3.Store) error) error {
	k.t.Helper()
	o := options(k.t, "http://"+k.link.Address())
	o.RetryFor = []time.Duration{100 * time.Millisecond, bound}[i%2]
	store := openStore(k.t, "sets", o)
	killed, restarted := make(chan struct{}), make(chan struct{})
	k.link.After(k.bytes*int64(i)/kills, func() {
		k.kill()
		close(killed)
		<-restarted
	})
	done := make(chan error, 1)
	go func() { done <- do(store) }()
	select {
	case <-killed:
	case err := <-done:
		require.Fail(k.t, "the operation ended before the kill", "kill %d: %v", i, err)
	}
	if i%2 == 1 {
		k.start()
		close(restarted)
		err := <-done
		require.NoError(k.t, err, "kill %d", i)
		return nil
	}
	close(restarted)
	err := <-done
	require.Error(k.t, err, "kill %d", i)
	k.start()
	return err
}

// requireOnly checks that the bucket contains only the named backup, and no unfinished uploads.
func (s *server) requireOnly(name string) {
	s.t.Helper()
	for u := range s.client().ListIncompleteUploads(s.t.Context(), bucket, "", true) {
		require.Failf(s.t, "unfinished upload", "%v", u)
	}
	for o := range s.client().ListObjects(s.t.Context(), bucket, minio.ListObjectsOptions{Recursive: true}) {
		require.NoError(s.t, o.Err)
		require.Contains(s.t, o.Key, "sets/"+name+"/")
	}
}

// Backup and restore succeed although the server rejects a third of all requests with SlowDown.
func TestBusyServer(t *testing.T) {
	s := startServer(t)
	s.makeBucket(minio.MakeBucketOptions{})
	b := startThrottlingProxy(t, s, 0)
	d := openData(t, in(t.TempDir(), "data"))
	d.publish(200)
	b.busy.Store(33)
	store := openStore(t, "sets", options(t, b.endpoint))
	set, err := backup.Run(t.Context(), d.s, backup.Options{Location: store})
	require.NoError(t, err)
	target := in(t.TempDir(), "target")
	_, err = backup.Restore(t.Context(), set.Name, target, backup.RestoreOptions{Location: store, SegmentBytes: 4 << 20})
	require.NoError(t, err)
	got, _ := restored(t, target)
	require.Equal(t, contents(t, d.s), got)
	require.Greater(t, b.rejected.Load(), int64(5))

	// If the server rejects all requests, the backup fails after the retry limit with an error that contains the cause.
	b.busy.Store(1_000_000)
	o := options(t, b.endpoint)
	o.RetryFor = 300 * time.Millisecond
	_, err = backup.Run(t.Context(), d.s, backup.Options{Location: openStore(t, "sets", o)})
	require.ErrorIs(t, err, backup.ErrRemote)
	require.Contains(t, err.Error(), "SlowDown")
	require.Contains(t, err.Error(), "300ms")
}

// Backups complete over a slow link, and a canceled backup leaves no objects.
func TestSlowServer(t *testing.T) {
	s := startServer(t)
	s.makeBucket(minio.MakeBucketOptions{})
	b := startThrottlingProxy(t, s, 8<<20)
	d := openData(t, in(t.TempDir(), "data"))
	d.publish(200)
	link, err := faultproxy.Listen(strings.TrimPrefix(b.endpoint, "http://"))
	require.NoError(t, err)
	t.Cleanup(func() { _ = link.Close() })
	store := openStore(t, "sets", options(t, "http://"+link.Address()))
	set, err := backup.Run(t.Context(), d.s, backup.Options{Location: store})
	require.NoError(t, err)
	complete := link.Bytes()
	_, err = backup.Verify(t.Context(), set.Name, backup.VerifyOptions{Location: store})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	link.After(complete/3, cancel)
	_, err = backup.Run(ctx, d.s, backup.Options{Location: store})
	require.ErrorIs(t, err, context.Canceled)
	sets, err := backup.List(t.Context(), store)
	require.NoError(t, err)
	require.Len(t, sets, 1, "a canceled backup must leave no objects")
}

// An archiver starts and stops while its server is down, and archives the missing log when the server is back.
func TestArchiveUnreachable(t *testing.T) {
	s := startServer(t)
	s.makeBucket(minio.MakeBucketOptions{})
	d := openData(t, in(t.TempDir(), "data"))
	d.publish(20)
	s.kill()
	o := options(t, s.endpoint())
	o.RetryFor = 200 * time.Millisecond
	a, err := backup.StartArchiver(d.s, backup.ArchiveOptions{
		Location: openStore(t, "log", o), Interval: 50 * time.Millisecond,
	})
	require.NoError(t, err)
	d.publish(20)
	require.Eventually(t, func() bool { return a.Status().Err != nil }, bound, 10*time.Millisecond)
	require.ErrorIs(t, a.Status().Err, backup.ErrRemote)
	s.start()
	require.Eventually(t, func() bool {
		st := a.Status()
		return st.Last == d.s.End() && st.Err == nil
	}, bound, 10*time.Millisecond)
	s.kill()
	d.publish(5)
	require.Error(t, a.Close(), "Close must report the log that is not archived")
	s.start()
	o.RetryFor = bound
	a, err = backup.StartArchiver(d.s, backup.ArchiveOptions{Location: openStore(t, "log", o), Interval: time.Hour})
	require.NoError(t, err)
	require.NoError(t, a.Flush(t.Context()))
	require.NoError(t, a.Close())
	chains, err := backup.VerifyArchive(t.Context(), openStore(t, "log", o), nil)
	require.NoError(t, err)
	require.Len(t, chains, 1)
	require.Equal(t, d.s.End(), chains[0].Last)
}

// A backup of a node removes the unfinished backups of that node, and keeps those of other nodes.
func TestUnfinishedBackupsOfOtherNodesAreKept(t *testing.T) {
	s := startServer(t)
	s.makeBucket(minio.MakeBucketOptions{})
	store := openStore(t, "sets", options(t, s.endpoint()))
	d := openData(t, in(t.TempDir(), "data"))
	d.publish(3)
	const other, own = "20261121T004500Z-lsn000002-ps16384", "20261121T004501Z-lsn000002-ps16384"
	mark := func(set string, node uuid.UUID) {
		require.NoError(t, put(t, store, ".partial-"+set+"/begun", fmt.Appendf(nil, `{"node_id": %q}`, node)))
		require.NoError(t, put(t, store, set+"/pages.pack", bytes.Repeat([]byte("x"), 1000)))
	}
	mark(other, uuid.New())
	mark(own, d.s.Identity().NodeID)
	set, err := backup.Run(t.Context(), d.s, backup.Options{Location: store, KeepGenerations: 1})
	require.NoError(t, err)
	sets, err := backup.List(t.Context(), store)
	require.NoError(t, err)
	require.Len(t, sets, 2)
	require.Equal(t, ".partial-"+other, sets[0].Name)
	require.ErrorIs(t, sets[0].Problem, backup.ErrIncomplete)
	require.Equal(t, set.Name, sets[1].Name)
	later := func() time.Time { return time.Now().Add(8 * 24 * time.Hour) }
	set, err = backup.Run(t.Context(), d.s, backup.Options{Location: store, KeepGenerations: 1, Now: later})
	require.NoError(t, err)
	s.requireOnly(set.Name)
}
