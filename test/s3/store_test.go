// SPDX-License-Identifier: Apache-2.0

//go:build unix && deep

package s3

import (
	"math/rand/v2"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/store"
	"github.com/lockstep-mq/lockstep/store/checkpoint"
	"github.com/lockstep-mq/lockstep/store/txn"
	"github.com/lockstep-mq/lockstep/store/wal"
)

// data is a store that the test commits to directly.
type data struct {
	t   *testing.T
	s   *store.Store
	rng *rand.ChaCha8
}

// epoch returns the time of the first transaction. Each further transaction is one second later.
func epoch() time.Time { return time.Date(2026, 11, 21, 0, 45, 0, 0, time.UTC) }

func openData(t *testing.T, dir string) *data {
	t.Helper()
	s, err := store.Open(store.Options{Dir: dir, PageSize: 16 << 10, SegmentBytes: 4 << 20, CheckpointInterval: time.Hour})
	require.NoError(t, err)
	t.Cleanup(func() { _ = s.Close() })
	d := &data{t: t, s: s, rng: rand.NewChaCha8([32]byte{7})}
	if s.End().LSN == 0 {
		d.log(func(b *txn.Builder) { b.CreateQueue("q", txn.Config{}, "default") })
		d.commit()
	}
	return d
}

// log appends one transaction to the log, without committing it.
func (d *data) log(build func(b *txn.Builder)) {
	d.t.Helper()
	end := d.s.End()
	var b txn.Builder
	b.Begin(nil, epoch().Add(time.Duration(end.LSN)*time.Second).UnixMilli(), nil)
	build(&b)
	payload, err := b.Finish()
	require.NoError(d.t, err)
	frames, end := wal.AppendFrame(nil, end, 7, wal.KindTxn, payload)
	require.NoError(d.t, d.s.Append(frames, end))
}

// commit makes the appended transactions durable and applies them.
func (d *data) commit() {
	d.t.Helper()
	require.NoError(d.t, d.s.Sync())
	require.NoError(d.t, d.s.Apply(d.s.End().LSN, func(_ uint64, r *txn.Result) { require.NoError(d.t, r.Err()) }))
}

// publish commits n transactions of one incompressible message of 64 KiB each.
func (d *data) publish(n int) {
	d.t.Helper()
	for range n {
		body := make([]byte, 64<<10)
		_, _ = d.rng.Read(body)
		d.log(func(b *txn.Builder) {
			b.BeginPublish(1)
			b.MessageWith(1_000, nil, nil, body)
			b.EndPublish()
		})
	}
	d.commit()
}

// contents returns the digest of the store's contents.
func contents(t *testing.T, s *store.Store) (d checkpoint.Digest) {
	t.Helper()
	require.NoError(t, s.ReadCheckpoint(t.Context(), store.ReadOptions{}, func(c *checkpoint.Checkpoint) (err error) {
		d, err = c.Digest(t.Context())
		return err
	}))
	return d
}

// restored opens a restored store, applies its log, and returns the digest and the last LSN.
func restored(t *testing.T, dir string) (checkpoint.Digest, uint64) {
	t.Helper()
	s, err := store.Open(store.Options{Dir: dir, SegmentBytes: 4 << 20})
	require.NoError(t, err)
	defer func() { require.NoError(t, s.Close()) }()
	require.NoError(t, s.Apply(s.End().LSN, nil))
	return contents(t, s), s.End().LSN
}

func in(dir string, parts ...string) string { return filepath.Join(append([]string{dir}, parts...)...) }
