package bench

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/lockstep-mq/lockstep/store"
	"github.com/lockstep-mq/lockstep/store/txn"
	"github.com/lockstep-mq/lockstep/store/vfs"
	"github.com/lockstep-mq/lockstep/store/wal"
)

// StoreOptions say how to load the embedded store: no gRPC, no replication.
type StoreOptions struct {
	// Dir for the data; it must be empty.
	Dir string
	// SizeBytes of a body.
	SizeBytes int
	// Messages in all, written in Bursts; each burst is read back before the next one. Nothing is acknowledged: the store
	// grows.
	Messages, Bursts int
	// Batch is how many messages are one transaction.
	Batch int
	// Sync mode: "always", "interval" or "off".
	Sync string
	// PageSize and MemoryBudget in bytes; 0 for the defaults.
	PageSize     int
	MemoryBudget int64
}

// storeRun is one run under way.
type storeRun struct {
	StoreOptions
	store   *store.Store
	builder txn.Builder
	body    []byte
	next    uint64 // sequence to read next
}

// Limits of one read.
const (
	readMessages = 1000
	readBytes    = 1 << 20
)

// Store measures writing and reading back in one goroutine. Two results for each burst: of a "write" a latency is that of
// one transaction, durable as the sync mode says and readable; of a "read" that of one read of up to 1000 messages or
// 1 MiB. Checksums are verified by the reads that come from pages, and every body is looked at.
func Store(ctx context.Context, o StoreOptions, report func(Result) error) (err error) {
	mode, err := wal.ParseSyncMode(o.Sync)
	if err != nil {
		return fmt.Errorf("sync mode: %w", err)
	}
	s, err := store.Open(store.Options{FS: vfs.OS(), Dir: o.Dir, Sync: mode, PageSize: o.PageSize, MemoryBudget: o.MemoryBudget})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	r := &storeRun{StoreOptions: o, store: s, body: body(o.SizeBytes), next: 1}
	if err := r.commit(func() { r.builder.CreateQueue("bench", txn.Config{}, "default") }); err != nil {
		return err
	}
	for burst := range o.Bursts {
		messages := o.Messages*(burst+1)/o.Bursts - o.Messages*burst/o.Bursts
		for _, phase := range []struct {
			name string
			run  func(context.Context, int, *Result) error
		}{{"write", r.write}, {"read", r.read}} {
			result := Result{
				Workload: "store", Phase: phase.name, Setup: "embedded", Sync: o.Sync, SizeBytes: o.SizeBytes, Batch: o.Batch, Burst: burst + 1,
			}
			m := newMeter(nil, o.Dir)
			if err := phase.run(ctx, messages, &result); err != nil {
				return err
			}
			result.cost(m)
			if err := report(result); err != nil {
				return err
			}
		}
	}
	return nil
}

// commit makes one transaction: log, sync, apply.
func (r *storeRun) commit(fill func()) error {
	buf := make([]byte, 0, r.Batch*(r.SizeBytes+64)+256) // the store keeps it
	r.builder.Begin(wal.BeginFrame(buf), time.Now().UnixMilli(), nil)
	fill()
	frame, err := r.builder.Finish()
	if err != nil {
		return fmt.Errorf("encode a transaction: %w", err)
	}
	frame, end := wal.EndFrame(frame, 0, r.store.End(), 1, wal.KindTxn)
	if err := r.store.Append(frame, end); err != nil {
		return err
	}
	if err := r.store.Sync(); err != nil {
		return err
	}
	var refused error
	err = r.store.Apply(end.LSN, func(_ uint64, res *txn.Result) { refused = res.Err() })
	return errors.Join(err, refused)
}

func (r *storeRun) write(ctx context.Context, messages int, out *Result) error {
	h, start := newHistogram(), time.Now()
	for done := 0; done < messages; done += r.Batch {
		if err := ctx.Err(); err != nil {
			return err //nolint:wrapcheck // Ctrl-C
		}
		begin := time.Now()
		err := r.commit(func() {
			now := begin.UnixMilli()
			r.builder.BeginPublish(1)
			for range min(r.Batch, messages-done) {
				r.builder.Message(now, nil, r.body)
			}
			r.builder.EndPublish()
		})
		if err != nil {
			return err
		}
		record(h, time.Since(begin))
	}
	out.took(time.Since(start), messages, h)
	return nil
}

func (r *storeRun) read(ctx context.Context, messages int, out *Result) error {
	h, start := newHistogram(), time.Now()
	var batch []store.Delivery
	var buffer store.ReadBuffer
	want := binary.LittleEndian.Uint64(append(r.body[:len(r.body):len(r.body)], make([]byte, 8)...))
	for got := 0; got < messages; got += len(batch) {
		begin := time.Now()
		var err error
		batch, r.next, err = r.store.Read(ctx, store.ReadRequest{
			Queue: 1, Sub: 1, From: r.next, MaxMessages: min(readMessages, messages-got), MaxBytes: readBytes, Buffer: &buffer,
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
			if len(m.Body) != r.SizeBytes || len(m.Body) >= 8 && binary.LittleEndian.Uint64(m.Body) != want {
				return fmt.Errorf("read back sequence %d: it is not what was written", batch[i].Sequence)
			}
		}
		record(h, time.Since(begin))
	}
	out.took(time.Since(start), messages, h)
	return nil
}
