// SPDX-License-Identifier: Apache-2.0

// Package audit keeps a record of each administrative call to a node and of each call that was refused: who, from
// where, what, how it ended. The newest records are in memory, where `lockstep audit tail` finds them, and all of them
// go to a file that is rotated, or to the log if there is none.
//
// A call never waits for the file. When the disk is slow or full, records that do not fit into a queue are lost for the
// file, which is counted and a condition; the newest are in memory all the same.
package audit

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	"google.golang.org/grpc/peer"
	"gopkg.in/natefinch/lumberjack.v2"

	"github.com/lockstep-mq/lockstep/server/access"
	"github.com/lockstep-mq/lockstep/server/gate"
)

const (
	// memoryRecords is how many records are in memory.
	memoryRecords = 1000
	// queueRecords is how many may wait for the file.
	queueRecords = 4096
	// repeatTime is how long refusals of one kind are only counted after a record of that kind, and kindsAtOnce how
	// many kinds there may be before all further ones count as one.
	repeatTime  = 10 * time.Second
	kindsAtOnce = 1024
	// closeLimit is how long Close waits for a disk that does not write.
	closeLimit = 2 * time.Second
)

// Options of Open.
type Options struct {
	// File gets the records, as lines of JSON; empty: the log gets them.
	File string
	// MaxBytes is how large it may become before it is rotated, in whole MiB; Keep, how many older ones stay.
	MaxBytes int64
	Keep     int
	// Node is the name of this node.
	Node string
	// LSN is the last record of the log that was applied.
	LSN func() uint64
	// Logger gets the records if there is no file, and what is wrong with it.
	Logger *zap.Logger
	// Write is where lines go instead of the file; for tests.
	Write io.WriteCloser
}

// Log keeps the records. It is safe for concurrent use.
type Log struct {
	o       Options
	sink    io.WriteCloser // nil: the log
	lines   chan []byte
	written sync.WaitGroup

	records, lost atomic.Uint64
	trouble       atomic.Pointer[string] // what is wrong with the file; nil: nothing

	mu     sync.Mutex // guards all below
	ring   []Record   // of memoryRecords; the record with number n is at n % memoryRecords
	next   uint64     // number of the next record
	more   chan struct{}
	kinds  map[kind]*repeated
	closed bool
}

// kind is what refusals have in common that are counted together.
type kind struct{ principal, host, method, code string }

type repeated struct {
	since time.Time // of the last record
	count uint64    // of those since
}

// Open opens the file, and takes into memory what is at its end. Close must be called.
func Open(o Options) (*Log, error) {
	l := &Log{
		o: o, lines: make(chan []byte, queueRecords), ring: make([]Record, memoryRecords),
		more: make(chan struct{}), kinds: map[kind]*repeated{}, sink: o.Write,
	}
	if o.File != "" && l.sink == nil {
		if err := l.recall(); err != nil {
			return nil, err
		}
		l.sink = &lumberjack.Logger{Filename: o.File, MaxSize: int(max(o.MaxBytes>>20, 1)), MaxBackups: o.Keep}
	}
	l.written.Go(l.write)
	return l, nil
}

// recallBytes is how much of the end of the file is read at the start.
const recallBytes = 1 << 20

// recall reads what the last run has written. It also finds out whether the file can be written.
func (l *Log) recall() error {
	f, err := os.OpenFile(l.o.File, os.O_CREATE|os.O_RDWR|os.O_APPEND, 0o600)
	if err != nil {
		return fmt.Errorf("audit.file: %w", err)
	}
	defer func() { _ = f.Close() }() // nothing was written
	info, err := f.Stat()
	if err != nil {
		return fmt.Errorf("audit.file: %w", err)
	}
	b, err := io.ReadAll(io.NewSectionReader(f, max(0, info.Size()-recallBytes), recallBytes))
	if err != nil {
		return fmt.Errorf("audit.file: %w", err)
	}
	for line := range strings.Lines(string(b)) {
		var r Record
		if json.Unmarshal([]byte(line), &r) == nil && r.Method != "" { // the first line may be cut
			l.remember(r)
		}
	}
	return nil
}

// Close writes what waits, for a moment, and ends.
func (l *Log) Close() error {
	for _, r := range l.unsaid(time.Time{}) {
		l.keep(r)
	}
	l.mu.Lock()
	already := l.closed
	l.closed = true
	if !already {
		close(l.lines)
	}
	l.mu.Unlock()
	if already {
		return nil
	}
	done := make(chan struct{})
	go func() {
		l.written.Wait()
		close(done)
	}()
	timer := time.NewTimer(closeLimit)
	defer timer.Stop()
	select {
	case <-done:
	case <-timer.C:
		l.o.Logger.Warn("the audit file takes no more; its last records are lost")
		return nil // the write ends with the process
	}
	if l.sink == nil {
		return nil
	}
	if err := l.sink.Close(); err != nil {
		return fmt.Errorf("audit.file: %w", err)
	}
	return nil
}

// Observe keeps a record of a call. It does not wait for the disk.
func (l *Log) Observe(ctx context.Context, c gate.Call) {
	r := Record{
		Time: c.Began.UTC(), Node: l.o.Node, Principal: c.Identity.Principal, Groups: c.Identity.Groups,
		Shown: c.Identity.Shown(), Method: strings.TrimPrefix(c.Method, "/"), LSN: l.o.LSN(),
	}
	if c.Began.IsZero() {
		r.Time = time.Now().UTC()
	}
	r.TookMS = float64(time.Since(r.Time).Microseconds()) / 1000
	if p, ok := peer.FromContext(ctx); ok {
		r.Address = p.Addr.String()
	}
	r.setOutcome(c.Err)
	if r.Outcome == Refused && l.repeats(&r) {
		return
	}
	r.setRequest(c.Request)
	l.keep(r)
}

// repeats tells whether a refusal is only counted: one of its kind has been kept shortly before.
func (l *Log) repeats(r *Record) bool {
	host := r.Address
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	now := time.Now()
	for _, old := range l.unsaid(now) {
		l.keep(old)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	k := kind{r.Principal, host, r.Method, r.Code}
	seen := l.kinds[k]
	if seen == nil && len(l.kinds) >= kindsAtOnce {
		k = kind{method: r.Method, code: r.Code}
		seen = l.kinds[k]
	}
	if seen == nil {
		l.kinds[k] = &repeated{since: now}
		return false
	}
	seen.count++
	return true
}

// unsaid gives the records of refusals that were only counted and whose time is over; all of them for the zero time.
func (l *Log) unsaid(now time.Time) []Record {
	l.mu.Lock()
	defer l.mu.Unlock()
	var out []Record
	for k, seen := range l.kinds {
		if !now.IsZero() && now.Sub(seen.since) < repeatTime {
			continue
		}
		delete(l.kinds, k)
		if seen.count > 0 {
			out = append(out, Record{
				Time: time.Now().UTC(), Node: l.o.Node, Principal: k.principal, Shown: access.MethodNone.String(),
				Address: k.host, Method: k.method, Outcome: Refused, Code: k.code, LSN: l.o.LSN(), Repeated: seen.count,
			})
		}
	}
	return out
}

// keep remembers a record and has it written.
func (l *Log) keep(r Record) {
	line, err := json.Marshal(r)
	if err != nil {
		return // a record of strings and numbers cannot fail
	}
	l.records.Add(1)
	l.remember(r)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		l.lost.Add(1)
		return
	}
	select {
	case l.lines <- append(line, '\n'):
	default:
		l.lost.Add(1)
		l.wrong("the disk of audit.file is too slow: records are lost")
	}
}

// remember puts a record where it is found by Read.
func (l *Log) remember(r Record) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ring[l.next%memoryRecords] = r
	l.next++
	close(l.more)
	l.more = make(chan struct{})
}

// write writes lines until Close.
func (l *Log) write() {
	for line := range l.lines {
		if l.sink == nil {
			l.o.Logger.Info("call", zap.Any("record", json.RawMessage(line[:len(line)-1])))
			continue
		}
		if _, err := l.sink.Write(line); err != nil {
			l.lost.Add(1)
			l.wrong("audit.file cannot be written: " + err.Error())
			continue
		}
		if len(l.lines) == 0 {
			l.trouble.Store(nil)
		}
	}
}

// wrong notes what is wrong with the file, and tells the log once.
func (l *Log) wrong(what string) {
	if l.trouble.Swap(&what) == nil {
		l.o.Logger.Error("audit: "+what, zap.Uint64("lost", l.lost.Load()))
	}
}

// Stats of a Log.
type Stats struct {
	// Records that were made, and those of them that are Lost: they are not in the file.
	Records, Lost uint64
	// Trouble is what is wrong with the file now; empty for nothing.
	Trouble string
}

// Stats tells how the audit is.
func (l *Log) Stats() Stats {
	s := Stats{Records: l.records.Load(), Lost: l.lost.Load()}
	if t := l.trouble.Load(); t != nil {
		s.Trouble = *t
	}
	return s
}

// Read gives the records in memory from a number on, the number to go on with, how many of those asked for are not
// there any more, and a channel that is closed when there are more.
func (l *Log) Read(from uint64) (records []Record, next, missed uint64, more <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	oldest := l.next - min(l.next, memoryRecords)
	if from < oldest {
		missed, from = oldest-from, oldest
	}
	for n := from; n < l.next; n++ {
		records = append(records, l.ring[n%memoryRecords])
	}
	return records, l.next, missed, l.more
}

// Newest is the number from which on there are the n newest records in memory.
func (l *Log) Newest(n uint64) uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.next - min(n, l.next, memoryRecords)
}
