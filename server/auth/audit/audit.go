// SPDX-License-Identifier: Apache-2.0

// Package audit implements the audit log, which contains administrative calls and denied calls. The newest records
// are kept in memory. Records are also written to a file that is rotated, or to the process log.
//
// Calls never wait for the file. A record is not written if the queue for the file is full, if the write fails, or if
// the log is closed. Such records are counted and remain in memory.
package audit

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	"google.golang.org/grpc/peer"

	"github.com/lockstep-mq/lockstep/server/auth"
	"github.com/lockstep-mq/lockstep/server/auth/access"
)

const (
	memoryRecords = 1000
	queueRecords  = 4096 // capacity of the queue for the file
	// After a denied call is recorded, further calls of the same kind are only counted during suppressTime. Beyond
	// maxKinds kinds, all denied calls with the same method and code are treated as one kind.
	suppressTime = 10 * time.Second
	maxKinds     = 1024
	// closeLimit limits how long Close waits for a disk that does not respond.
	closeLimit = 2 * time.Second
)

// Options configures Open.
type Options struct {
	File string // path of the file with records as JSON lines; empty for the process log
	// MaxBytes is the maximum size of the file, at least 1 MiB. Keep is the number of rotated files to keep.
	MaxBytes int64
	Keep     int
	Node     string
	LSN      func() uint64  // returns the LSN of the last applied record
	Logger   *zap.Logger    // receives the records if there is no file, and errors of the file
	Write    io.WriteCloser // replaces the file in tests
}

// Log is the audit log of a node. It is safe for concurrent use.
type Log struct {
	o       Options
	sink    io.WriteCloser // nil for the process log
	lines   chan []byte
	written sync.WaitGroup

	records, lost atomic.Uint64
	fileError     atomic.Pointer[string] // error of the file; nil without one

	mu     sync.Mutex // guards the fields below
	ring   []Record   // length memoryRecords; record n is at n % memoryRecords
	next   uint64     // number of the next record
	more   chan struct{}
	kinds  map[kind]*suppressed
	closed bool
}

type kind struct{ principal, host, method, code string } // denied calls of the same kind are counted together

type suppressed struct {
	since time.Time // time of the last record
	count uint64    // number of denied calls since then
}

// Open opens the file and loads its last records into memory. The caller must call Close.
func Open(o Options) (*Log, error) {
	l := &Log{
		o: o, lines: make(chan []byte, queueRecords), ring: make([]Record, memoryRecords),
		more: make(chan struct{}), kinds: map[kind]*suppressed{}, sink: o.Write,
	}
	if o.File != "" && l.sink == nil {
		f := &rotatedFile{path: o.File, max: max(o.MaxBytes, 1<<20), keep: o.Keep}
		if err := l.load(f); err != nil {
			_ = f.Close() // no data was written
			return nil, fmt.Errorf("audit.file: %w", err)
		}
		l.sink = f
	}
	l.written.Go(l.write)
	return l, nil
}

const loadBytes = 1 << 20 // number of bytes read from the end of the file at the start

func (l *Log) load(f *rotatedFile) error {
	if err := f.open(); err != nil {
		return err
	}
	b, err := io.ReadAll(io.NewSectionReader(f.file, max(0, f.size-loadBytes), loadBytes))
	if err != nil {
		return err //nolint:wrapcheck // the error contains the path
	}
	for line := range strings.Lines(string(b)) {
		var r Record
		if json.Unmarshal([]byte(line), &r) == nil && r.Method != "" { // the first line may be incomplete
			l.cache(r)
		}
	}
	return nil
}

// Close writes the queued records, for at most closeLimit, and closes the log.
func (l *Log) Close() error {
	for _, r := range l.takeCounted(time.Time{}) {
		l.store(r)
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
		l.o.Logger.Warn("audit.file not writable, last records lost")
		return nil // the writer ends with the process
	}
	if l.sink == nil {
		return nil
	}
	if err := l.sink.Close(); err != nil {
		return fmt.Errorf("audit.file: %w", err)
	}
	return nil
}

// Observe records a call. It does not wait for the disk. A denied call is only counted if a call of the same kind was
// recorded recently.
func (l *Log) Observe(ctx context.Context, c auth.Call) {
	r := Record{
		Time: c.Began.UTC(), Node: l.o.Node, Principal: c.Identity.Principal, Groups: c.Identity.Groups,
		Shown: c.Identity.Authentication(), Method: strings.TrimPrefix(c.Method, "/"), LSN: l.o.LSN(),
	}
	if c.Began.IsZero() {
		r.Time = time.Now().UTC()
	}
	r.DurationMS = float64(time.Since(r.Time).Microseconds()) / 1000
	if p, ok := peer.FromContext(ctx); ok {
		r.Address = p.Addr.String()
	}
	r.Address = cmp.Or(c.Identity.Address, r.Address)
	r.setOutcome(c.Err)
	if r.Outcome == Refused && l.suppresses(&r) {
		return
	}
	r.setRequest(c.Request)
	l.store(r)
}

// suppresses reports whether a denied call must not be recorded, and counts such a call. It also stores a record for
// each counter that takeCounted removes.
func (l *Log) suppresses(r *Record) bool {
	host := r.Address
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	now := time.Now()
	for _, old := range l.takeCounted(now) {
		l.store(old)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	k := kind{r.Principal, host, r.Method, r.Code}
	seen := l.kinds[k]
	if seen == nil && len(l.kinds) >= maxKinds {
		k = kind{method: r.Method, code: r.Code}
		seen = l.kinds[k]
	}
	if seen == nil {
		l.kinds[k] = &suppressed{since: now}
		return false
	}
	seen.count++
	return true
}

// takeCounted removes the counters that are at least suppressTime old at now. If now is zero, it removes all
// counters. It returns a record for each removed counter that is not 0.
func (l *Log) takeCounted(now time.Time) []Record {
	l.mu.Lock()
	defer l.mu.Unlock()
	var out []Record
	for k, seen := range l.kinds {
		if !now.IsZero() && now.Sub(seen.since) < suppressTime {
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

func (l *Log) store(r Record) {
	line, err := json.Marshal(r)
	if err != nil {
		return // unreachable: a record contains only strings and numbers
	}
	l.records.Add(1)
	l.cache(r)
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
		l.fail("disk of audit.file too slow, records lost")
	}
}

func (l *Log) cache(r Record) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ring[l.next%memoryRecords] = r
	l.next++
	close(l.more)
	l.more = make(chan struct{})
}

func (l *Log) write() {
	for line := range l.lines {
		if l.sink == nil {
			l.o.Logger.Info("call", zap.Any("record", json.RawMessage(line[:len(line)-1])))
			continue
		}
		if _, err := l.sink.Write(line); err != nil {
			l.lost.Add(1)
			l.fail("audit.file cannot be written: " + err.Error())
			continue
		}
		if len(l.lines) == 0 {
			l.fileError.Store(nil)
		}
	}
}

// fail records an error of the file. It logs only the first of consecutive errors.
func (l *Log) fail(label string) {
	if l.fileError.Swap(&label) == nil {
		l.o.Logger.Error("audit: "+label, zap.Uint64("lost", l.lost.Load()))
	}
}

// Stats contains statistics of a Log.
type Stats struct {
	Records, Lost uint64 // Lost is the number of records that were not written
	Error         string // error of the file; empty without one
}

// Stats returns the current statistics.
func (l *Log) Stats() Stats {
	s := Stats{Records: l.records.Load(), Lost: l.lost.Load()}
	if t := l.fileError.Load(); t != nil {
		s.Error = *t
	}
	return s
}

// Read returns the records in memory, beginning with number from, and the number of the next record. missed is the
// number of requested records that are no longer in memory. more is closed when a further record is added.
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

// Newest returns the number of the first of the n newest records in memory.
func (l *Log) Newest(n uint64) uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.next - min(n, l.next, memoryRecords)
}
