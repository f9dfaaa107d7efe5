// SPDX-License-Identifier: Apache-2.0

package wal

import (
	"flag"
	"fmt"
	"math/rand"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/store/lsn"
	"github.com/lockstep-mq/lockstep/test/tier"
	"github.com/lockstep-mq/lockstep/test/vfs/faultfs"
	"github.com/lockstep-mq/lockstep/test/vfs/memfs"
)

var seedsFlag = flag.Int("wal.seeds", tier.Count(30, 60), "histories per sync mode in TestRandomHistoriesWithCrashes")

// model is the expected content of the log: all records of the current history, durable or not.
type model struct {
	start   lsn.Position
	recs    []lsn.Position // positions of records start.LSN+1, …
	durable uint64
	trimmed uint64 // records up to this one may be missing
	// committed is the LSN passed to NoteCommitted, written the highest committed LSN in a block, and sealed the
	// highest committed LSN in a durable block.
	committed, written, sealed uint64
}

func (m model) at(record uint64) lsn.Position {
	if record == m.start.LSN {
		return m.start
	}
	return m.recs[record-m.start.LSN-1]
}

func (m model) end() uint64 { return m.start.LSN + uint64(len(m.recs)) }

// truncate returns the model after TruncateAfter.
func (m model) truncate(record uint64) model {
	m.recs = m.recs[: record-m.start.LSN : record-m.start.LSN]
	m.durable, m.trimmed = record, min(m.trimmed, record)
	m.committed, m.written, m.sealed = min(m.committed, record), min(m.written, record), min(m.sealed, record)
	return m
}

// allowed lists the histories that a crash may leave: one, or those before and after a truncation or reset.
type allowed []model

// find returns the model that matches an opened log, truncated to the log's content.
func (a allowed) find(l *Log) (model, error) {
	end, base := l.End(), l.segs[0].prev.LSN
	var why []error
	for _, m := range a {
		switch {
		case end.LSN < m.durable:
			why = append(why, fmt.Errorf("the log ends at %s, %d was durable", end, m.durable))
		case end.LSN > m.end() || end.LSN < m.start.LSN || m.at(end.LSN) != end:
			why = append(why, fmt.Errorf("the log ends at %s, which was never written (%d to %d)", end, m.start.LSN,
				m.end()))
		case base > max(m.trimmed, m.start.LSN):
			why = append(why, fmt.Errorf("the log begins after %d, only %d was released", base, m.trimmed))
		case l.Committed() > max(m.committed, m.trimmed, m.start.LSN):
			why = append(why, fmt.Errorf("committed is %d, at most %d was committed", l.Committed(), m.committed))
		case l.Committed() < min(m.sealed, end.LSN):
			why = append(why, fmt.Errorf("committed is %d, %d was durable", l.Committed(),
				m.sealed))
		default:
			durable := m.durable
			m = m.truncate(end.LSN)
			m.durable = durable
			return m, nil
		}
	}
	return model{}, fmt.Errorf("no history matches: %v", why)
}

// machine runs a random workload on a log, and copies its disk at one of the operations.
type machine struct {
	t   *testing.T
	rng *rand.Rand
	o   Options
	mem *memfs.FS

	mu      sync.Mutex // segments are prepared in a separate goroutine
	allowed allowed
	now     model
	ops     int
	crashAt int
	// crashed is the disk after the crash; crashedOf are the histories allowed at that moment.
	crashed   *memfs.FS
	crashedOf allowed
}

func (m *machine) hook(op faultfs.Op) error {
	switch op.Kind {
	case faultfs.OpWrite, faultfs.OpSync, faultfs.OpSyncDir, faultfs.OpRename, faultfs.OpRemove, faultfs.OpCreate,
		faultfs.OpTruncate,
		faultfs.OpAllocate:
	default:
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.ops++; m.ops == m.crashAt {
		m.capture()
	}
	return nil
}

func (m *machine) capture() {
	m.crashed, m.crashedOf = m.mem.CrashClone(m.rng), append(allowed(nil), m.allowed...)
}

// set changes the histories that a crash may leave.
func (m *machine) set(models ...model) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.allowed, m.now = models, models[len(models)-1]
}

// runGeneration opens the log, checks it, runs a workload, and saves the disk of a simulated crash for the next
// generation.
func (m *machine) runGeneration(generation int) {
	fault := faultfs.New(m.mem)
	m.mu.Lock()
	m.ops, m.crashed = 0, nil
	m.crashAt = 1 + m.rng.Intn(60)
	if generation%3 == 2 {
		m.crashAt += 150
	}
	m.mu.Unlock()
	fault.SetHook(m.hook)
	o := m.o
	o.FS = fault
	l, err := Open(o)
	require.NoError(m.t, err)
	found, err := m.allowed.find(l)
	require.NoError(m.t, err)
	m.check(l, found)
	found.durable = l.End().LSN // guaranteed by Open
	found.committed, found.written, found.sealed = l.Committed(), l.Committed(), l.Committed()
	if o.Sync == SyncOff {
		found.durable = found.start.LSN
	}
	m.set(found)

	m.mu.Lock() // the hook uses the same generator
	seed := m.rng.Int63()
	m.mu.Unlock()
	local := rand.New(rand.NewSource(seed))
	for step := 0; step < 200; step++ {
		m.mu.Lock()
		done := m.crashed != nil
		m.mu.Unlock()
		if done && step > 5 {
			break
		}
		m.step(l, local, uint64(generation+1))
	}
	require.NoError(m.t, l.Close())
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.crashed == nil {
		if o.Sync == SyncOff {
			m.allowed[0].durable = m.now.end()
		}
		m.capture()
	}
	m.mem, m.allowed = m.crashed, m.crashedOf
}

func (m *machine) check(l *Log, want model) {
	r, err := l.ReadFrom(l.segs[0].first)
	require.NoError(m.t, err)
	for record := l.segs[0].first; record <= l.End().LSN; record++ {
		f, err := r.Next()
		require.NoError(m.t, err)
		require.Equal(m.t, want.at(record), f.Pos)
	}
}

func (m *machine) step(l *Log, rng *rand.Rand, term uint64) {
	now := m.now
	switch what := rng.Intn(40); {
	case what < 20:
		m.append(l, rng, max(term, l.End().Term))
	case what < 32:
		require.NoError(m.t, l.Sync())
		if m.o.Sync == SyncAlways {
			now.durable, now.sealed = now.end(), now.written
			m.set(now)
		}
	case what < 34:
		synced := l.synced == l.end // otherwise no seal is written
		l.seal()
		if synced && m.o.Sync == SyncAlways {
			now.written, now.sealed = now.committed, now.committed
			m.set(now)
		}
	case what < 35:
		now.committed = max(now.committed, uint64(rng.Int63n(int64(now.end())+1)))
		m.set(now)
		l.NoteCommitted(now.committed)
	case what < 37:
		now.trimmed = max(now.trimmed, now.start.LSN+uint64(rng.Int63n(int64(now.end()-now.start.LSN)+1)))
		now.committed = max(now.committed, now.trimmed)
		m.set(now)
		l.NoteCommitted(now.committed) // like the store before a checkpoint
		l.Release(now.trimmed)
	case what < 39:
		base := l.segs[0].prev.LSN
		record := base + uint64(rng.Int63n(int64(now.end()-base)+1))
		if rng.Intn(2) == 0 { // usually only a few records are truncated
			record = max(base, now.end()-min(now.end(), uint64(rng.Intn(5))))
		}
		after := now.truncate(record)
		m.set(now, after)
		_, err := l.TruncateAfter(now.at(record), []string{"", "truncated.seg"}[rng.Intn(2)])
		require.NoError(m.t, err)
		m.set(after)
	case rng.Intn(4) == 0:
		start := lsn.Position{Term: l.End().Term, LSN: uint64(rng.Int63n(int64(now.end()) + 10)), Chain: rng.Uint32()}
		after := model{
			start: start, durable: start.LSN, trimmed: start.LSN, committed: start.LSN, written: start.LSN,
			sealed: start.LSN,
		}
		m.set(now, after)
		require.NoError(m.t, l.Reset(start))
		m.set(after)
	}
}

func (m *machine) append(l *Log, rng *rand.Rand, term uint64) {
	now := m.now
	pos := l.End()
	var frames []byte
	var added []lsn.Position
	for range 1 + rng.Intn(4) {
		size := rng.Intn(400)
		if rng.Intn(30) == 0 {
			size = rng.Intn(20_000)
		}
		// After a crash, either the same records follow, since the active resends them, or other records.
		body := payload(term/2, pos.LSN, size)
		frames, pos = AppendFrame(frames, pos, term/2+1, KindTxn, body)
		if pos.Term < l.End().Term {
			frames, pos = batch(l.End(), l.End().Term, 1, size)
			added = nil
		}
		added = append(added, pos)
	}
	now.recs = append(now.recs[:len(now.recs):len(now.recs)], added...)
	now.written = now.committed
	m.set(now)
	require.NoError(m.t, l.Append(frames, pos))
}

// Random histories have power failures at any disk operation, including those of recovery, rolls, truncations and
// resets. The log loses no durable record, finds no unwritten record, and never reports a torn tail as corruption. A
// seed is reproducible except for the timing of the goroutine that prepares segments.
func TestRandomHistoriesWithCrashes(t *testing.T) {
	for _, mode := range []SyncMode{SyncAlways, SyncOff} {
		t.Run(mode.String(), func(t *testing.T) {
			for seed := range *seedsFlag {
				t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
					rng := rand.New(rand.NewSource(int64(seed)))
					mem := newMem(t)
					o := testOptions(mem)
					o.SegmentBytes, o.Sync = minSegmentBytes, mode
					m := &machine{t: t, rng: rng, o: o, mem: mem}
					m.set(model{})
					for generation := range 8 {
						m.runGeneration(generation)
					}
				})
			}
		})
	}
}
