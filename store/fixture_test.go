// SPDX-License-Identifier: Apache-2.0

package store_test

import (
	"context"
	"fmt"
	oldrand "math/rand"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/store"
	"github.com/lockstep-mq/lockstep/store/checkpoint"
	"github.com/lockstep-mq/lockstep/store/query"
	"github.com/lockstep-mq/lockstep/store/txn"
	"github.com/lockstep-mq/lockstep/store/vfs"
	"github.com/lockstep-mq/lockstep/store/wal"
)

// node is a store with a minimal committer: each transaction is appended, synced and applied.
type node struct {
	t    *testing.T
	s    *store.Store
	term uint64
	raw  [][]byte // all frames in order, for use by a second node
}

func options(fs vfs.FS) store.Options {
	return store.Options{FS: fs, Dir: "/data", SegmentBytes: 256 << 10, BootID: "boot-1", MaxFrameBytes: 1 << 20}
}

func openNode(t *testing.T, o store.Options) *node {
	t.Helper()
	s, err := store.Open(o)
	require.NoError(t, err)
	t.Cleanup(func() { _ = s.Close() })
	return &node{t: t, s: s, term: 1}
}

// encode returns the payload of one transaction.
func encode(t *testing.T, producer *txn.Producer, build func(b *txn.Builder)) []byte {
	t.Helper()
	var b txn.Builder
	b.Begin(nil, 1_000, producer)
	build(&b)
	payload, err := b.Finish()
	require.NoError(t, err)
	return payload
}

// appendTxn appends a transaction to the log and syncs the log. It does not apply the transaction.
func (n *node) appendTxn(payload []byte) error {
	frames, end := wal.AppendFrame(nil, n.s.End(), n.term, wal.KindTxn, payload)
	n.raw = append(n.raw, slices.Clone(frames))
	if err := n.s.Append(frames, end); err != nil {
		return err
	}
	return n.s.Sync()
}

func (n *node) commit(build func(b *txn.Builder)) txn.Result {
	n.t.Helper()
	require.NoError(n.t, n.appendTxn(encode(n.t, nil, build)))
	return n.applyAll()
}

// applyAll applies the whole log and returns the last result.
func (n *node) applyAll() txn.Result {
	n.t.Helper()
	var last txn.Result
	require.NoError(n.t, n.s.Apply(n.s.End().LSN, func(_ uint64, r *txn.Result) { last = *r }))
	return last
}

// checkStore checks a checkpoint of the current state.
func checkStore(
	ctx context.Context, s *store.Store, progress func(done, total uint64),
) (r checkpoint.Report, err error) {
	err = s.ReadCheckpoint(ctx, store.ReadOptions{}, func(c *checkpoint.Checkpoint) (err error) {
		r, err = c.Check(ctx, progress)
		return err
	})
	return r, err
}

// digestOf returns the digest of the current content.
func digestOf(ctx context.Context, s *store.Store) (checkpoint.Digest, error) {
	return digestAt(ctx, s, 0, 0)
}

// digestAt returns the digest of the content at an LSN.
func digestAt(ctx context.Context, s *store.Store, at uint64, maxWait time.Duration) (d checkpoint.Digest, err error) {
	err = s.ReadCheckpoint(ctx, store.ReadOptions{At: at, MaxWait: maxWait},
		func(c *checkpoint.Checkpoint) (err error) {
			d, err = c.Digest(ctx)
			return err
		})
	return d, err
}

// scanStore scans a checkpoint of the current state.
func scanStore(ctx context.Context, s *store.Store, o checkpoint.ScanOptions) (r checkpoint.ScanResult, err error) {
	err = s.ReadCheckpoint(ctx, store.ReadOptions{OlderIfFull: true}, func(c *checkpoint.Checkpoint) (err error) {
		r, err = c.Scan(ctx, o)
		return err
	})
	return r, err
}

// checkDir checks the closed store in /data.
func checkDir(fsys vfs.FS) (r checkpoint.Report, err error) {
	err = checkpoint.ReadDir(fsys, "/data", func(c *checkpoint.Checkpoint) (err error) {
		r, err = c.Check(context.Background(), nil)
		return err
	})
	return r, err
}

// scanDir scans the closed store in /data.
func scanDir(fsys vfs.FS, o checkpoint.ScanOptions) (r checkpoint.ScanResult, err error) {
	err = checkpoint.ReadDir(fsys, "/data", func(c *checkpoint.Checkpoint) (err error) {
		r, err = c.Scan(context.Background(), o)
		return err
	})
	return r, err
}

// check verifies at the end of a test that the store is consistent.
func (n *node) check() {
	n.t.Helper()
	report, err := checkStore(context.Background(), n.s, nil)
	require.NoError(n.t, err)
	require.Empty(n.t, report.Problems)
	require.NoError(n.t, n.s.Pager().CheckSpans())
}

// model is a simple reference implementation of a store.
type model struct {
	queues []*modelQueue
	nextID uint64
}

type modelQueue struct {
	id     uint64
	name   string
	bodies map[uint64]string // all messages ever published
	next   uint64
	subs   []*modelSub
}

type modelSub struct {
	id    uint32
	name  string
	acked map[uint64]bool
	first uint64
}

// wants reports whether the subscription has not acknowledged message seq.
func (s *modelSub) wants(seq uint64) bool { return seq >= s.first && !s.acked[seq] }

// dump lists the unacknowledged messages of each subscription.
func (m *model) dump() string {
	var b strings.Builder
	for _, q := range m.queues {
		fmt.Fprintf(&b, "queue %d %s next=%d\n", q.id, q.name, q.next)
		for _, s := range q.subs {
			fmt.Fprintf(&b, " sub %d:", s.id)
			for seq := uint64(1); seq < q.next; seq++ {
				if s.wants(seq) {
					fmt.Fprintf(&b, " %d=%s", seq, q.bodies[seq])
				}
			}
			b.WriteByte('\n')
		}
	}
	return b.String()
}

func queueInfos(t *testing.T, s *store.Store) []query.QueueInfo {
	t.Helper()
	infos, _, err := query.Queues(s, query.QueueRange{MaxQueues: 1000, MaxSubscriptions: 1000})
	require.NoError(t, err)
	return infos
}

// dumpStore returns the content of a store in the format of model.dump. It reads the store in small pieces.
func dumpStore(t *testing.T, s *store.Store) string {
	t.Helper()
	var b strings.Builder
	infos := queueInfos(t, s)
	slices.SortFunc(infos, func(a, b query.QueueInfo) int { return int(a.ID) - int(b.ID) })
	for _, q := range infos {
		fmt.Fprintf(&b, "queue %d %s next=%d\n", q.ID, q.Name, q.NextSequence)
		for _, sub := range q.Subscriptions {
			fmt.Fprintf(&b, " sub %d:", sub.ID)
			from := uint64(1)
			for {
				got, next, err := s.Read(context.Background(), store.ReadRequest{
					Queue: q.ID, Sub: sub.ID, From: from, MaxMessages: 7, MaxBytes: 20_000,
				}, nil)
				require.NoError(t, err)
				if len(got) == 0 {
					break
				}
				for _, d := range got {
					require.GreaterOrEqual(t, d.Sequence, from)
					msg, err := txn.DecodeMessage(d.Record)
					require.NoError(t, err)
					fmt.Fprintf(&b, " %d=%s", d.Sequence, short(msg.Body))
					from = d.Sequence + 1
				}
				require.GreaterOrEqual(t, next, from)
				from = next
			}
			b.WriteByte('\n')
		}
	}
	return b.String()
}

// body returns a random message body, occasionally a large one.
func body(rng *rand.Rand, maxBytes int) []byte {
	n := 1 + rng.IntN(200)
	if rng.IntN(8) == 0 {
		n = 1 + rng.IntN(maxBytes)
	}
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(rng.Uint32())
	}
	return b
}

func short(b []byte) string {
	var sum uint64 = 14695981039346656037
	for _, c := range b {
		sum = (sum ^ uint64(c)) * 1099511628211
	}
	return fmt.Sprintf("%d:%08x", len(b), uint32(sum))
}

// step applies one random transaction to the model and returns its payload.
func (m *model) step(t *testing.T, rng *rand.Rand, maxBytes int) []byte {
	t.Helper()
	if len(m.queues) == 0 || (len(m.queues) < 4 && rng.IntN(20) == 0) {
		return m.create(t, rng)
	}
	q := m.queues[rng.IntN(len(m.queues))]
	switch k := rng.IntN(100); {
	case k < 45 || len(q.subs) == 0:
		return m.publish(t, rng, q, maxBytes)
	case k < 92:
		return m.ack(t, rng, q)
	case k < 94 && len(m.queues) > 1:
		m.queues = slices.DeleteFunc(m.queues, func(o *modelQueue) bool { return o == q })
		return encode(t, nil, func(b *txn.Builder) { b.DeleteQueue(q.id, false) })
	case k < 96:
		for _, s := range q.subs {
			for seq := uint64(1); seq < q.next; seq++ {
				s.acked[seq] = true
			}
		}
		return encode(t, nil, func(b *txn.Builder) { b.Purge(q.id, 0) })
	default:
		return m.publishTwo(t, rng, maxBytes)
	}
}

func (m *model) create(t *testing.T, rng *rand.Rand) []byte {
	m.nextID++
	q := &modelQueue{id: m.nextID, name: fmt.Sprintf("q%d", m.nextID), bodies: map[uint64]string{}, next: 1}
	var names []string
	for i := range 1 + rng.IntN(3) {
		names = append(names, fmt.Sprintf("s%d", i))
		q.subs = append(q.subs, &modelSub{id: uint32(i + 1), name: names[i], acked: map[uint64]bool{}, first: 1})
	}
	m.queues = append(m.queues, q)
	return encode(t, nil, func(b *txn.Builder) { b.CreateQueue(q.name, txn.Config{}, names...) })
}

func (m *model) publish(t *testing.T, rng *rand.Rand, q *modelQueue, maxBytes int) []byte {
	return encode(t, nil, func(b *txn.Builder) { q.publish(b, rng, maxBytes) })
}

// publishTwo publishes to two queues in one transaction.
func (m *model) publishTwo(t *testing.T, rng *rand.Rand, maxBytes int) []byte {
	return encode(t, nil, func(b *txn.Builder) {
		for _, q := range m.queues[:min(2, len(m.queues))] {
			q.publish(b, rng, maxBytes)
		}
	})
}

func (q *modelQueue) publish(b *txn.Builder, rng *rand.Rand, maxBytes int) {
	b.BeginPublish(q.id)
	for range 1 + rng.IntN(5) {
		msg := body(rng, maxBytes)
		b.Message(1_000, nil, msg)
		q.bodies[q.next] = short(msg)
		q.next++
	}
	b.EndPublish()
}

func (m *model) ack(t *testing.T, rng *rand.Rand, q *modelQueue) []byte {
	s := q.subs[rng.IntN(len(q.subs))]
	var ranges []txn.Range
	if q.next > 1 {
		first := 1 + rng.Uint64N(q.next-1)
		if rng.IntN(2) == 0 { // from the oldest unacknowledged message, as consumers do
			first = 1
			for first < q.next-1 && !s.wants(first) {
				first++
			}
		}
		last := min(first+rng.Uint64N(12), q.next-1)
		ranges = append(ranges, txn.Range{First: first, Last: last})
		for seq := first; seq <= last; seq++ {
			s.acked[seq] = true
		}
	}
	if len(ranges) == 0 {
		return m.publish(t, rng, q, 100)
	}
	return encode(t, nil, func(b *txn.Builder) { b.Ack(q.id, s.id, ranges...) })
}

// foreign returns a transaction that is not in the model.
func (m *model) foreign(_ *testing.T) func(b *txn.Builder) {
	return func(b *txn.Builder) { b.CreateQueue("foreign", txn.Config{}, "default") }
}

// crashRand returns a generator for CrashClone.
func crashRand(rng *rand.Rand) *oldrand.Rand {
	return oldrand.New(oldrand.NewSource(rng.Int64()))
}

func parseSync(t *testing.T, name string) wal.SyncMode {
	t.Helper()
	m, err := wal.ParseSyncMode(name)
	require.NoError(t, err)
	return m
}
