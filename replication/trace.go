// SPDX-License-Identifier: Apache-2.0

package replication

import (
	"context"
	"sync"
	"time"
)

// Span is a traced piece of work that is under way. Its methods may be called by any goroutine and under locks: they
// do not block, and what is called after End has no effect.
type Span interface {
	// Part begins a part of it.
	Part(name string, at time.Time) Span
	// Link points from it to another one that has to do with it and is no part of it.
	Link(to Span)
	// Context names it for the other node.
	Context() TraceContext
	// End ends it; err is why it failed, nil if it has not.
	End(at time.Time, err error)
}

// TraceContext names a span to another process, in the form of W3C Trace Context.
type TraceContext struct {
	// Parent is the value of traceparent, State that of tracestate.
	Parent, State string
}

// Tracer makes the spans that replication begins. Only what is sampled has a span: nil stands for all else.
type Tracer interface {
	// Of returns the span that the caller of a transaction works in, or nil.
	Of(ctx context.Context) Span
	// Commit begins the span of a batch that ends with record n, in which the transactions of these spans, at least
	// one, are committed together: it is a part of the first one, and linked with the others.
	Commit(of []Span, at time.Time, n uint64, bytes int) Span
	// Append begins the span of a standby that takes in what the active sent in a span of its own; nil if that is none.
	Append(parent TraceContext, at time.Time, n uint64, bytes int) Span
}

// maxTracedTransactions is how many transactions of a batch are linked with its span; further ones are not.
const maxTracedTransactions = 32

// batchTrace is what is traced of a batch. Batches in which nothing is have none: nil.
type batchTrace struct {
	// of are the spans of its transactions, and began is when the first of them came; set before it is committed.
	of    []Span
	began time.Time

	mu sync.Mutex // guards what follows
	// span of the batch; nil before it is committed, and when it has ended.
	span Span
	// apply is its part from when it is committed until it is applied.
	apply Span
}

// with adds the span of a transaction, nil for none. t may be nil.
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

// part begins a part of the batch's span; nil if that is not under way. t may be nil.
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

// link points from the batch's span to another one. Both may be nil.
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

// committed begins the part in which the batch is applied.
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

// endSpan ends a span that may be nil.
func endSpan(s Span, at time.Time, err error) {
	if s != nil {
		s.End(at, err)
	}
}

// partsOf begins a part of the span of each batch in which something is traced.
func partsOf(batches []batch, name string) (parts []Span) {
	for i := range batches {
		if s := batches[i].trace.part(name); s != nil {
			parts = append(parts, s)
		}
	}
	return parts
}

// endAll ends parts.
func endAll(parts []Span, err error) {
	for _, s := range parts {
		s.End(time.Now(), err)
	}
}

// spanOf returns the span that the caller of a transaction works in, or nil.
func (p *Primary) spanOf(ctx context.Context) Span {
	if p.o.Tracer == nil {
		return nil
	}
	return p.o.Tracer.Of(ctx)
}

// traced is a batch that is not applied.
type traced struct {
	end   uint64
	trace *batchTrace
	// committed: advance has passed it.
	committed bool
}

// beginTraces begins the spans of batches that are about to be committed. mu is not held.
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

// traceCommitted notes that everything up to record n is committed. mu is held.
func (p *Primary) traceCommitted(n uint64) {
	now := time.Now()
	for i := range p.traces {
		if t := &p.traces[i]; !t.committed && t.end <= n {
			t.committed = true
			t.trace.committed(now)
		}
	}
}

// traceApplied ends the spans of the batches up to record n. mu is not held.
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

// endTraces ends all spans, since the role has ended. mu is not held.
func (p *Primary) endTraces(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, t := range p.traces {
		t.trace.end(err)
	}
	p.traces = nil
	p.tracing.Store(false)
}

// beginWay begins the span in which batches travel to the standby together; nil if none of them is traced. It is a part
// of the first one that is, and linked with the others.
func beginWay(batches []batch) (way Span) {
	for i := range batches {
		switch t := batches[i].trace; {
		case t == nil:
		case way == nil:
			way = t.part("replicate")
		default:
			t.link(way)
		}
	}
	return way
}

// received makes the trace of a batch that the active has sent in a span; nil if it was in none.
func (f *Follower) received(m *ActiveMessage, bytes int) *batchTrace {
	if m.Trace == nil || f.o.Tracer == nil {
		return nil
	}
	span := f.o.Tracer.Append(*m.Trace, time.Now(), m.Last.LSN, bytes)
	if span == nil {
		return nil
	}
	return &batchTrace{span: span}
}
