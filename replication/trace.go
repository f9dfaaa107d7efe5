// SPDX-License-Identifier: Apache-2.0

package replication

import (
	"context"
	"sync"
	"time"
)

// Span is a traced operation in progress. Its methods are safe for concurrent use, may be called with locks held, do
// not block, and have no effect after End.
type Span interface {
	// Part starts a child span.
	Part(name string, at time.Time) Span
	// Link adds a link to a related span that is not a child.
	Link(to Span)
	// Context returns the context to propagate to the other node.
	Context() TraceContext
	// End ends the span; err is nil on success.
	End(at time.Time, err error)
}

// TraceContext identifies a span to another process, as defined by W3C Trace Context.
type TraceContext struct {
	// Parent is the traceparent value, State the tracestate value.
	Parent, State string
}

// Tracer creates the spans of replication. Unsampled operations have a nil span.
type Tracer interface {
	// Of returns the span of ctx, or nil.
	Of(ctx context.Context) Span
	// Commit starts the span of a batch that ends at LSN n. The slice contains the spans of the traced transactions in
	// the batch, at least one. The new span is a child of the first of them, and linked with the others.
	Commit(of []Span, at time.Time, n uint64, bytes int) Span
	// Append starts the standby's span for records up to LSN n. parent is the span in which the active sent them.
	Append(parent TraceContext, at time.Time, n uint64, bytes int) Span
}

// maxTracedTransactions is the maximum number of transactions linked with the span of a batch.
const maxTracedTransactions = 32

type batchTrace struct {
	// of are the spans of the transactions, and began is the time of the first one; set before the commit.
	of    []Span
	began time.Time

	mu sync.Mutex // guards the fields below
	// span is the span of the batch; nil before its commit starts and after it has ended.
	span  Span
	apply Span
}

// with adds the span of a transaction. t and span may be nil.
func (t *batchTrace) with(span Span) *batchTrace {
	if span == nil {
		return t
	}
	if t == nil {
		t = &batchTrace{began: time.Now()}
	}
	if len(t.of) < maxTracedTransactions {
		t.of = append(t.of, span)
	}
	return t
}

// part starts a child of the batch's span; it returns nil if the span is not active. t may be nil.
func (t *batchTrace) part(name string) Span {
	if t == nil {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.span == nil {
		return nil
	}
	return t.span.Part(name, time.Now())
}

// link links the batch's span to another span. t and to may be nil.
func (t *batchTrace) link(to Span) {
	if t == nil || to == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.span != nil {
		t.span.Link(to)
	}
}

func (t *batchTrace) committed(at time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.span != nil {
		t.apply = t.span.Part("apply", at)
	}
}

// end ends the batch's span. t may be nil.
func (t *batchTrace) end(err error) {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	endSpan(t.apply, now, err)
	endSpan(t.span, now, err)
	t.apply, t.span, t.of = nil, nil, nil
}

func endSpan(s Span, at time.Time, err error) {
	if s != nil {
		s.End(at, err)
	}
}

func partsOf(batches []batch, name string) (parts []Span) {
	for i := range batches {
		if s := batches[i].trace.part(name); s != nil {
			parts = append(parts, s)
		}
	}
	return parts
}

func endAll(parts []Span, err error) {
	for _, s := range parts {
		s.End(time.Now(), err)
	}
}

func (p *Primary) spanOf(ctx context.Context) Span {
	if p.o.Tracer == nil {
		return nil
	}
	return p.o.Tracer.Of(ctx)
}

type traced struct {
	end       uint64
	trace     *batchTrace
	committed bool
}

// beginTraces starts the spans of batches to be committed. mu is not held.
func (p *Primary) beginTraces(batches []batch) {
	for i := range batches {
		b := &batches[i]
		if b.trace == nil {
			continue
		}
		span := p.o.Tracer.Commit(b.trace.of, b.trace.began, b.end.LSN, len(b.frames))
		if span == nil {
			continue
		}
		b.trace.mu.Lock()
		b.trace.span = span
		b.trace.mu.Unlock()
		p.mu.Lock()
		p.traces = append(p.traces, traced{end: b.end.LSN, trace: b.trace})
		p.tracing.Store(true)
		p.mu.Unlock()
	}
}

// traceCommitted records the commit of the batches up to LSN n in their traces. mu is held.
func (p *Primary) traceCommitted(n uint64) {
	now := time.Now()
	for i := range p.traces {
		if t := &p.traces[i]; !t.committed && t.end <= n {
			t.committed = true
			t.trace.committed(now)
		}
	}
}

// traceApplied ends the spans of the batches up to LSN n. mu is not held.
func (p *Primary) traceApplied(n uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	done := 0
	for done < len(p.traces) && p.traces[done].end <= n {
		p.traces[done].trace.end(nil)
		done++
	}
	p.traces = append(p.traces[:0], p.traces[done:]...)
	p.tracing.Store(len(p.traces) > 0)
}

// endTraces ends all spans at the end of the role. mu is not held.
func (p *Primary) endTraces(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, t := range p.traces {
		t.trace.end(err)
	}
	p.traces = nil
	p.tracing.Store(false)
}

// startFlightSpan starts the span of a send of these batches; it returns nil if none is traced. The span is a child of
// the first traced batch's span, and linked with the others.
func startFlightSpan(batches []batch) (span Span) {
	for i := range batches {
		switch t := batches[i].trace; {
		case t == nil:
		case span == nil:
			span = t.part("replicate")
		default:
			t.link(span)
		}
	}
	return span
}

func (f *Follower) startAppendSpan(m *ActiveMessage, bytes int) *batchTrace {
	if m.Trace == nil || f.o.Tracer == nil {
		return nil
	}
	span := f.o.Tracer.Append(*m.Trace, time.Now(), m.Last.LSN, bytes)
	if span == nil {
		return nil
	}
	return &batchTrace{span: span}
}
