// SPDX-License-Identifier: Apache-2.0

package measure

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/lockstep-mq/lockstep/cmd/internal/bench"
	"github.com/lockstep-mq/lockstep/server/config"
	"github.com/lockstep-mq/lockstep/server/node"
	"github.com/lockstep-mq/lockstep/store"
	"github.com/lockstep-mq/lockstep/store/datadir"
	"github.com/lockstep-mq/lockstep/store/txn"
	"github.com/lockstep-mq/lockstep/store/vfs"
	"github.com/lockstep-mq/lockstep/store/wal"
)

// EmbeddedOptions configures an embedded store and its load, which runs in one goroutine.
type EmbeddedOptions struct {
	// Dir is the data directory; it must be empty.
	Dir       string
	SizeBytes int
	// Batch is the number of messages per transaction.
	Batch int
	Sync  string
	// PageSize and MemoryBudget are in bytes; 0 selects the default.
	PageSize     int
	MemoryBudget int64
	PageCache    store.PageCache
}

// StoreOptions configures the load with bursts.
type StoreOptions struct {
	EmbeddedOptions
	// Messages is the number of messages per burst. No messages are acknowledged, so the store grows.
	Messages, Bursts int
	// Pause is the time between bursts.
	Pause time.Duration
	// If Warm is set, Store first writes and deletes as much data as it will use.
	Warm bool
	// MemoryLimit is the limit of this process and its page cache, in bytes; 0 means none. It requires root and a memory
	// cgroup. If it cannot be set, the Comment of the results contains the reason.
	MemoryLimit int64
	// If Far is set, Store also measures opening the store and reading from the first message on, compared with a
	// plain read of the file.
	Far bool
}

type embedded struct {
	EmbeddedOptions
	store   *store.Store
	builder txn.Builder
	body    []byte
	next    uint64        // sequence to read next
	opened  time.Duration // duration of the last start
	note    string
}

const (
	firstQueue = 1
	firstSub   = 1
)

// Limits of one read.
const (
	readMessages = 1000
	readBytes    = 1 << 20
)

func openEmbedded(o EmbeddedOptions) (*embedded, error) {
	e := &embedded{EmbeddedOptions: o, body: bench.Body(o.SizeBytes), next: 1}
	err := e.open()
	return e, err
}

func (e *embedded) open() error {
	mode, err := wal.ParseSyncMode(e.Sync)
	if err != nil {
		return fmt.Errorf("sync mode: %w", err)
	}
	begin := time.Now()
	e.store, err = store.Open(store.Options{
		FS: vfs.OS(), Dir: e.Dir, Sync: mode, PageSize: e.PageSize,
		MemoryBudget: node.StoreMemory(e.budget()), PageCache: e.PageCache,
	})
	e.opened = time.Since(begin)
	return err
}

func (e *embedded) budget() int64 {
	if e.MemoryBudget == 0 {
		return config.Default().Memory.Budget.Bytes()
	}
	return e.MemoryBudget
}

// close closes the store. It may be called more than once.
func (e *embedded) close() error {
	if e.store == nil {
		return nil
	}
	s := e.store
	e.store = nil
	return s.Close()
}

func (e *embedded) result(workload, phase string) bench.Result {
	return bench.Result{
		Workload: workload, Phase: phase, Setup: "embedded", Sync: e.Sync, SizeBytes: e.SizeBytes, Batch: e.Batch,
		BudgetMB: float64(e.budget()) / 1e6, Comment: e.note,
	}
}

func (e *embedded) measure(r *bench.Result, fn func(*bench.Result) error) error {
	bench.ResetPeaks(bench.Self())
	m := bench.NewMeter(nil, e.Dir)
	if err := fn(r); err != nil {
		return err
	}
	r.Cost(m)
	for _, u := range r.Processes {
		r.PeakRSS = max(r.PeakRSS, u.PeakRSS)
	}
	return nil
}

// Store measures writing bursts and reading them back. It reports two results for each burst, "write" and "read". A
// latency of "write" is that of a transaction, until it is readable, and durable according to the sync mode. A latency
// of "read" is that of a read of up to 1000 messages or 1 MiB. Far adds "start" and "read far".
func Store(ctx context.Context, o StoreOptions, report func(bench.Result) error) (err error) {
	if o.Warm {
		if err := Warm(ctx, o.Dir, StoreBytes(o.Messages, o.Bursts, o.SizeBytes)); err != nil {
			return err
		}
	}
	note, limited := "", 0.0
	if o.MemoryLimit > 0 {
		leave, lerr := limitMemory(o.MemoryLimit)
		if lerr != nil {
			note = fmt.Sprintf("memory is NOT limited: %v", lerr)
		} else {
			limited = float64(o.MemoryLimit) / 1e6
			defer func() { err = errors.Join(err, leave()) }()
		}
	}
	r, err := openEmbedded(o.EmbeddedOptions)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.close()) }()
	r.note = note
	if err := r.createQueue("bench"); err != nil {
		return err
	}
	tell := func(res bench.Result) error {
		res.MemoryLimitMB = limited
		return report(res)
	}
	for n := range o.Bursts {
		if n > 0 {
			if err := elapse(ctx, o.Pause); err != nil {
				return err
			}
		}
		if err := r.burst(ctx, n, o.Messages, tell); err != nil {
			return err
		}
	}
	if !o.Far {
		return nil
	}
	return r.far(ctx, o.Messages*o.Bursts, tell)
}

// StoreBytes returns the approximate number of bytes that a run of Store writes to the page file and keeps in the log.
func StoreBytes(messages, bursts, sizeBytes int) int64 {
	const recordBytes = 40 // overhead per body
	data := int64(messages) * int64(bursts) * int64(sizeBytes+recordBytes)
	return data + min(data, store.DefaultCheckpointBytes+store.DefaultLogKeepBytes)
}

func (e *embedded) burst(ctx context.Context, n, messages int, report func(bench.Result) error) error {
	for _, phase := range []struct {
		name string
		run  func(context.Context, int, *bench.Result) error
	}{{"write", e.write}, {"read", e.read}} {
		result := e.result("store", phase.name)
		result.Burst, result.Stored = n+1, n*messages
		if err := e.measure(&result, func(r *bench.Result) error { return phase.run(ctx, messages, r) }); err != nil {
			return err
		}
		if err := report(result); err != nil {
			return err
		}
	}
	return nil
}

// far measures opening the store, and reading all messages with an empty page cache.
func (e *embedded) far(ctx context.Context, messages int, report func(bench.Result) error) error {
	file := datadir.PageFile(e.Dir)
	if _, err := e.store.Checkpoint(ctx); err != nil {
		return err
	}
	if err := e.close(); err != nil {
		return err
	}
	before, err := coldRead(ctx, file)
	if err != nil {
		return err
	}
	if err := dropDirFromCache(e.Dir); err != nil { // the plain read has filled it
		return err
	}
	start := e.result("store", "start")
	start.Stored = messages
	if err := e.measure(&start, func(r *bench.Result) error { //nolint:contextcheck // the store's goroutines end with Close, not with a context
		if err := e.open(); err != nil {
			return err
		}
		r.Seconds = e.opened.Seconds()
		r.StartMS = r.Seconds * 1000
		return nil
	}); err != nil {
		return err
	}
	if err := report(start); err != nil {
		return err
	}
	if err := dropFromCache(file); err != nil {
		return err
	}
	e.next = 1
	result := e.result("store", "read far")
	result.Stored = messages
	if err := e.measure(&result, func(r *bench.Result) error { return e.read(ctx, messages, r) }); err != nil {
		return err
	}
	after, err := coldRead(ctx, file)
	if err != nil {
		return err
	}
	// Use the mean of both plain reads, because a hypervisor may have cached the data of the first one.
	result.DiskReadMB = (before + after) / 2
	result.Ratio = result.MB / result.DiskReadMB
	result.Comment = joinNotes(e.note, fmt.Sprintf("ratio to a plain read of page.db: %.0f MB/s before it, %.0f after",
		before, after))
	return report(result)
}

func joinNotes(a, b string) string {
	if a == "" {
		return b
	}
	return a + "; " + b
}

func (e *embedded) createQueue(name string) error {
	return e.commit(func() { e.builder.CreateQueue(name, txn.Config{}, "default") })
}

// commit logs, syncs and applies one transaction.
func (e *embedded) commit(fill func()) error {
	return e.commitMany(1, func(int) { fill() })
}

// commitMany commits several transactions, which are written and synced together.
func (e *embedded) commitMany(transactions int, fill func(i int)) (err error) {
	frames, end := make([]byte, 0, e.Batch*(e.SizeBytes+64)+transactions*256), e.store.End() // the store retains frames
	for i := range transactions {
		start := len(frames)
		e.builder.Begin(wal.BeginFrame(frames), time.Now().UnixMilli(), nil)
		fill(i)
		if frames, err = e.builder.Finish(); err != nil {
			return fmt.Errorf("encode a transaction: %w", err)
		}
		frames, end = wal.EndFrame(frames, start, end, 1, wal.KindTxn)
	}
	if err := e.store.Append(frames, end); err != nil {
		return err
	}
	if err := e.store.Sync(); err != nil {
		return err
	}
	var refused error
	err = e.store.Apply(end.LSN, func(_ uint64, res *txn.Result) {
		if refused == nil {
			refused = res.Err()
		}
	})
	return errors.Join(err, refused)
}

func (e *embedded) write(ctx context.Context, messages int, out *bench.Result) error {
	return e.transactions(ctx, messages, out, func(now int64, _, n int) {
		e.builder.BeginPublish(firstQueue)
		for range n {
			e.builder.Message(now, nil, e.body)
		}
		e.builder.EndPublish()
	})
}

// transactions commits count items in transactions of at most Batch items. fill adds n items to the transaction; done
// is the number of items in earlier transactions.
func (e *embedded) transactions(
	ctx context.Context, count int, out *bench.Result, fill func(nowMS int64, done, n int),
) error {
	h, start := bench.NewHistogram(), time.Now()
	for done := 0; done < count; done += e.Batch {
		if err := ctx.Err(); err != nil {
			return err
		}
		begin := time.Now()
		if err := e.commit(func() { fill(begin.UnixMilli(), done, min(e.Batch, count-done)) }); err != nil {
			return err
		}
		bench.Record(h, time.Since(begin))
	}
	out.Duration(time.Since(start), count, h)
	return nil
}

// read reads the messages after those of the previous call.
func (e *embedded) read(ctx context.Context, messages int, out *bench.Result) error {
	h, start := bench.NewHistogram(), time.Now()
	var batch []store.Delivery
	var buffer store.ReadBuffer
	want := binary.LittleEndian.Uint64(append(e.body[:len(e.body):len(e.body)], make([]byte, 8)...))
	for got := 0; got < messages; got += len(batch) {
		begin := time.Now()
		var err error
		batch, e.next, err = e.store.Read(ctx, store.ReadRequest{
			Queue: firstQueue, Sub: firstSub, From: e.next, MaxMessages: min(readMessages, messages-got),
			MaxBytes: readBytes,
			Buffer:   &buffer,
		}, batch[:0])
		if err != nil {
			return err
		}
		if len(batch) == 0 {
			return fmt.Errorf("read back: %d of %d messages are missing", messages-got, messages)
		}
		for i := range batch {
			m, err := txn.DecodeMessage(batch[i].Record)
			if err != nil {
				return fmt.Errorf("read back sequence %d: %w", batch[i].Sequence, err)
			}
			if len(m.Body) != e.SizeBytes || len(m.Body) >= 8 && binary.LittleEndian.Uint64(m.Body) != want {
				return fmt.Errorf("read back sequence %d: content differs", batch[i].Sequence)
			}
		}
		bench.Record(h, time.Since(begin))
	}
	out.Duration(time.Since(start), messages, h)
	return nil
}

// Trend returns the mean rate of the last half of the bursts divided by the mean rate of the first two. ok is false for
// fewer than four bursts.
func Trend(bursts []bench.Result) (ratio float64, ok bool) {
	if len(bursts) < 4 {
		return 0, false
	}
	mean := func(list []bench.Result) (sum float64) {
		for i := range list {
			sum += list[i].Rate / float64(len(list))
		}
		return sum
	}
	return mean(bursts[len(bursts)/2:]) / mean(bursts[:2]), true
}
