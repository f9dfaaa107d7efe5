// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"cmp"
	"slices"

	"github.com/lockstep-mq/lockstep/store/mutate"
	"github.com/lockstep-mq/lockstep/store/txn"
)

// producers detects retries (INV-10). For each producer it retains the results of the last transactions by sequence,
// and a floor: sequences at or below the floor are too old. A sequence above the floor without a result was never
// applied. Rejections of operations are also retained.
//
// Eviction depends only on the log order.
type producers struct {
	limits limits
	byID   map[string]*producer

	// newest and oldest are the ends of a list in the order of last use. Producers older than oldestWithResults have no
	// results.
	newest, oldest, oldestWithResults *producer

	total     usage // over all producers
	forgotten uint64
	dirty     []*producer
	gone      []string // stored producers evicted since the last Collect
}

type producer struct {
	id           string
	epoch        uint32
	floor        uint64
	usedLSN      uint64 // logical number of its last use
	results      []cachedResult
	head         int   // index of the first remaining result
	used         usage // of results
	newer, older *producer
	isDirty      bool
	stored       bool
	dropped      bool
}

// cachedResult is a compact representation of a txn.Result.
type cachedResult struct {
	sequence uint64
	lsn      uint64 // logical number
	code     txn.Code
	op       int16
	// fingerprint is the fingerprint of the operations. It is 0 if unknown, such as after a restart, and is not part
	// of the state.
	fingerprint uint32
	one         txn.OpResult
	more        []txn.OpResult // used instead of one for several results
}

// usage is the size of results: the number of operation results, and of the duplicates in them.
type usage struct{ ops, duplicates int }

func (u *usage) add(o usage) { u.ops, u.duplicates = u.ops+o.ops, u.duplicates+o.duplicates }

func (u *usage) remove(o usage) { u.ops, u.duplicates = u.ops-o.ops, u.duplicates-o.duplicates }

func (u usage) exceeds(ops, duplicates int) bool { return u.ops > ops || u.duplicates > duplicates }

func (k *cachedResult) usage() usage {
	u := usage{ops: max(1, len(k.more)), duplicates: k.one.Duplicates.Len()}
	for i := range k.more {
		u.duplicates += k.more[i].Duplicates.Len()
	}
	return u
}

func (k *cachedResult) result() txn.Result {
	r := txn.Result{LSN: k.lsn, Duplicate: true, Code: k.code, Op: int(k.op), Ops: k.more}
	if k.code == txn.OK && k.more == nil {
		r.Ops = []txn.OpResult{k.one}
	}
	return r
}

func (p *producer) window() []cachedResult { return p.results[p.head:] }

func (p *producer) find(sequence uint64) (int, bool) {
	w := p.window()
	if n := len(w); n == 0 || w[n-1].sequence < sequence {
		return n, false // the usual case
	}
	return slices.BinarySearchFunc(w, sequence, func(k cachedResult, s uint64) int { return cmp.Compare(k.sequence, s) })
}

// lookup determines whether to apply a transaction of producer p (OK and no result), return an earlier result, or
// reject the transaction.
func (ps *producers) lookup(p txn.Producer) (known *producer, prior *cachedResult, code txn.Code) {
	known = ps.byID[string(p.ID)]
	switch {
	case known == nil && ps.forgotten > 0 && p.Sequence > uint64(ps.limits.evictionThreshold):
		// The producer may have been evicted. The first sequences of a new producer are accepted, since its first
		// transactions may have been rejected before they were logged.
		return nil, nil, txn.ErrProducerForgotten
	case known == nil || p.Epoch > known.epoch:
		return known, nil, txn.OK
	case p.Epoch < known.epoch:
		return known, nil, txn.ErrFenced
	case p.Sequence <= known.floor:
		return known, nil, txn.ErrTooOld
	}
	if i, ok := known.find(p.Sequence); ok {
		prior = &known.window()[i]
	}
	return known, prior, txn.OK
}

// admit is lookup for Apply. If it returns an earlier result, it makes the producer the most recently used one.
func (ps *producers) admit(logical uint64, p txn.Producer) (prior *cachedResult, code txn.Code) {
	known, prior, code := ps.lookup(p)
	if prior != nil {
		ps.touch(known, logical)
	}
	return prior, code
}

func (ps *producers) record(p txn.Producer, r *txn.Result, fingerprint uint32) {
	known := ps.byID[string(p.ID)]
	if known == nil {
		known = &producer{id: string(p.ID)}
		ps.byID[known.id] = known
		ps.link(known)
	}
	if p.Epoch > known.epoch {
		ps.strip(known)
		known.epoch, known.floor = p.Epoch, 0
	}
	kept := cachedResult{sequence: p.Sequence, lsn: r.LSN, code: r.Code, op: int16(r.Op), fingerprint: fingerprint}
	switch {
	case len(r.Ops) == 1:
		kept.one = r.Ops[0]
	case len(r.Ops) > 1:
		kept.more = r.Ops
	}
	ps.insert(known, kept)
	ps.touch(known, r.LSN)
	ps.bound(known)
}

func (ps *producers) insert(p *producer, k cachedResult) {
	if len(p.results) == cap(p.results) && p.head > 0 {
		n := copy(p.results, p.window())
		clear(p.results[n:])
		p.results, p.head = p.results[:n], 0
	}
	i, _ := p.find(k.sequence)
	p.results = slices.Insert(p.results, p.head+i, k)
	p.used.add(k.usage())
	ps.total.add(k.usage())
	l := &ps.limits
	for len(p.window()) > l.producerWindow ||
		p.used.exceeds(l.producerOps, l.producerDuplicates) && len(p.window()) > 1 {
		first := &p.results[p.head]
		p.floor = first.sequence
		p.used.remove(first.usage())
		ps.total.remove(first.usage())
		*first = cachedResult{}
		p.head++
	}
}

// bound enforces the limits on producers and results. It does not remove the producer used or its results.
func (ps *producers) bound(used *producer) {
	for len(ps.byID) > ps.limits.producers && ps.oldest != used {
		ps.evict(ps.oldest)
	}
	for ps.total.exceeds(ps.limits.totalOps, ps.limits.totalDuplicates) && ps.oldestWithResults != nil &&
		ps.oldestWithResults != used {
		p := ps.oldestWithResults
		p.floor = p.window()[len(p.window())-1].sequence
		ps.strip(p)
		ps.oldestWithResults = p.newer
		ps.mark(p)
	}
}

func (ps *producers) strip(p *producer) {
	ps.total.remove(p.used)
	p.results, p.head, p.used = nil, 0, usage{}
}

func (ps *producers) evict(p *producer) {
	ps.strip(p)
	ps.unlink(p)
	delete(ps.byID, p.id)
	p.dropped = true
	ps.forgotten++
	if p.stored {
		ps.gone = append(ps.gone, p.id)
	}
}

// touch makes p the most recently used producer. p must have results.
func (ps *producers) touch(p *producer, logical uint64) {
	p.usedLSN = logical
	ps.mark(p)
	if ps.newest != p {
		ps.unlink(p)
		ps.link(p)
	}
	if ps.oldestWithResults == nil {
		ps.oldestWithResults = p
	}
}

func (ps *producers) mark(p *producer) {
	if !p.isDirty {
		p.isDirty = true
		ps.dirty = append(ps.dirty, p)
	}
}

func (ps *producers) link(p *producer) {
	p.newer, p.older = nil, ps.newest
	if ps.newest != nil {
		ps.newest.newer = p
	} else {
		ps.oldest = p
	}
	ps.newest = p
}

func (ps *producers) unlink(p *producer) {
	if ps.oldestWithResults == p {
		ps.oldestWithResults = p.newer
	}
	if p.newer != nil {
		p.newer.older = p.older
	} else {
		ps.newest = p.older
	}
	if p.older != nil {
		p.older.newer = p.newer
	} else {
		ps.oldest = p.newer
	}
	p.newer, p.older = nil, nil
}

// CachedResult returns a result of Apply that does not depend on the operations of the transaction (INV-10): the
// earlier result for the same sequence, or the code of a rejection. If it returns neither, Apply would evaluate the
// transaction.
func (s *State) CachedResult(p txn.Producer) (prior txn.Result, ok bool, refused txn.Code) {
	_, kept, code := s.producers.lookup(p)
	return cachedResultOf(kept, code)
}

// CachedResultOfRetry is CachedResult for a transaction that the producer has sent before. If any producer was
// evicted, it returns txn.ErrProducerForgotten for every unknown producer.
func (s *State) CachedResultOfRetry(p txn.Producer) (prior txn.Result, ok bool, refused txn.Code) {
	known, kept, code := s.producers.lookup(p)
	if known == nil && s.producers.forgotten > 0 && !mutate.Off("INV-10-retry-of-a-forgotten-producer-is-let-in") {
		code = txn.ErrProducerForgotten
	}
	return cachedResultOf(kept, code)
}

// Fingerprint returns the txn.Op.Fingerprint of all operations of the transaction that CachedResult finds. It is 0 if
// CachedResult finds no result, for rejected transactions, and for transactions applied before the state was loaded.
func (s *State) Fingerprint(p txn.Producer) uint32 {
	if _, kept, _ := s.producers.lookup(p); kept != nil {
		return kept.fingerprint
	}
	return 0
}

func cachedResultOf(kept *cachedResult, code txn.Code) (prior txn.Result, ok bool, refused txn.Code) {
	if kept == nil {
		return txn.Result{}, false, code
	}
	return kept.result(), true, txn.OK
}
