// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"slices"

	"github.com/lockstep-mq/lockstep/store/mutate"
	"github.com/lockstep-mq/lockstep/store/txn"
)

// Apply applies the transaction of a log record. It panics if lsn is not above Applied. It checks the whole
// transaction before it changes anything. A rejected transaction changes at most Applied, Digest, the position and
// logical number of a site, and the record of the producer. The state retains parts of payload, so the caller must
// not modify payload.
//
// If the result's code is txn.ErrNewerVersion, or if ReadError returns an error, Apply changed nothing and the node
// must stop: it must not skip the record.
func (s *State) Apply(lsn uint64, payload []byte) txn.Result {
	return s.ApplyWith(lsn, payload, txn.Checksum{})
}

// ApplyWith is like Apply. sum is the checksum of payload, if known. It saves computing the checksum of a large
// message that is at the end of the payload.
func (s *State) ApplyWith(lsn uint64, payload []byte, sum txn.Checksum) txn.Result {
	if lsn <= s.applied {
		panic(fmt.Sprintf("queue: record %d applied after record %d", lsn, s.applied))
	}
	logical := lsn + s.site.Offset // the state and the result contain logical numbers, which are equal at all sites
	r := txn.Result{LSN: logical, Op: -1}
	r.Code = codeOf(s.reader.Reset(payload))
	s.ids.err = nil
	if s.site.Role != SiteNone || s.reader.ForSites() {
		var apply bool
		if logical, apply = s.admitSite(lsn, &r); !apply {
			s.applied = lsn
			return r
		}
	}
	if r.Code == txn.OK {
		s.reader.SetChecksum(sum)
		s.counted = lsn > s.countAfter
		s.applyAdmitted(&r)
	}
	if r.Code == txn.ErrNewerVersion && !r.Duplicate || s.ids.err != nil {
		return r
	}
	s.applied = lsn
	s.digest = mix(mix(s.digest, logical), uint64(r.Code)<<1|b2u(r.Duplicate))
	if s.site.Role != SiteNone {
		s.advanceSite(logical)
	}
	return r
}

// Advance raises Applied to lsn. The log records after the old Applied, up to lsn, must not contain transactions.
func (s *State) Advance(lsn uint64) { s.applied = max(s.applied, lsn) }

func (s *State) applyAdmitted(r *txn.Result) {
	producer, ok := s.reader.Producer()
	if ok {
		prior, code := s.producers.admit(r.LSN, producer)
		if prior != nil && !mutate.Off("INV-10-retry-is-applied-again") {
			*r = prior.result() // return the original result (INV-10)
			return
		}
		if r.Code = code; code != txn.OK {
			return
		}
	}
	clear(s.ids.found)
	r.Op, r.Code = s.check()
	if s.ids.err != nil {
		return
	}
	fingerprint := uint32(0)
	switch r.Code {
	case txn.OK:
		fingerprint = s.change(r, ok)
	case txn.ErrNewerVersion:
		return
	default: // a rejection is also a result
		if s.counted {
			s.counts.Refused++
		}
	}
	if ok {
		s.producers.record(producer, r, fingerprint) // INV-10: recorded in the same transaction as its messages
	}
}

func codeOf(err error) txn.Code {
	if err == nil {
		return txn.OK
	}
	code := txn.ErrMalformed
	errors.As(err, &code)
	return code
}

func b2u(b bool) uint64 {
	if b {
		return 1
	}
	return 0
}

// checkedSequences contains the numbers of sequences that the operations of a transaction release and take. Both are
// limited.
type checkedSequences struct{ released, taken int }

// check validates all operations, and returns the index and code of the first invalid operation, or -1 and OK. The
// index does not count operations that the active has added. Limits are checked against the state before the
// transaction plus its publishes; space freed by its acknowledgements does not count.
func (s *State) check() (op int, code txn.Code) {
	var sequences checkedSequences
	clear(s.pending)
	s.pending = s.pending[:0]
	s.meta.pending = 0
	s.published, s.added, s.fleet.owned, s.fleet.epoch = publishedBefore{}, 0, nil, 0
	for i := 0; ; i++ {
		o, err := s.reader.Next()
		if errors.Is(err, io.EOF) {
			if s.fleet.owned != nil {
				return 0, txn.ErrMixed // not followed by an OpCreateQueue
			}
			return -1, txn.OK
		}
		if err != nil {
			return i, codeOf(err)
		}
		if o.Code.Alone() && s.reader.Ops() > 1 && !s.allowsTwo(i, o) {
			return i, txn.ErrMixed
		}
		if o.Code != txn.OpForward {
			s.published.count = 0
		}
		if code := s.checkOp(o, &sequences); code != txn.OK {
			return i - s.added, code // a client does not count operations that the active has added
		}
	}
}

// checkGlobal verifies an operation that is not on a queue in the table of queues, such as the creation of a queue or
// an operation of a move. ok is false for the other operations.
func (s *State) checkGlobal(o *txn.Op) (code txn.Code, ok bool) {
	switch o.Code { //nolint:exhaustive // the others require an existing queue
	case txn.OpCreateQueue:
		return s.checkCreate(o), true
	case txn.OpPutMeta, txn.OpSwapMeta:
		return s.checkMeta(o), true
	case txn.OpDeleteMeta, txn.OpDue, txn.OpSite: // admitSite applies a valid OpSite
		return txn.OK, true
	case txn.OpAccess, txn.OpPolicy, txn.OpFleet, txn.OpOwn:
		return s.checkTable(o), true
	case txn.OpPrepare:
		return s.checkPrepare(o), true
	case txn.OpCommitPrepared, txn.OpRollbackPrepared:
		return s.checkDecide(o), true
	}
	if o.Code.Moves() {
		return s.checkMoveOp(o), true
	}
	return txn.OK, false
}

func (s *State) checkOp(o *txn.Op, checked *checkedSequences) txn.Code {
	if code, ok := s.checkGlobal(o); ok {
		return code
	}
	q := s.queues.get(o.Queue)
	if q == nil {
		return txn.ErrQueueNotFound
	}
	if code := q.checkServed(); code != txn.OK {
		return code
	}
	var sub *Sub
	if o.Code == txn.OpDeleteSubscription || o.Code == txn.OpAck || o.Code == txn.OpRelease || o.Code == txn.OpMove ||
		o.Code == txn.OpTake || o.Code == txn.OpAlterSubscription ||
		(o.Code == txn.OpPurge || o.Code == txn.OpPause) && o.Sub != 0 ||
		o.Code == txn.OpSeek && o.Sub != txn.RetentionSub {
		if sub = q.subOf(o); sub == nil {
			return txn.ErrSubscriptionNotFound
		}
	}
	switch o.Code {
	case txn.OpDeleteQueue:
		if o.IfEmpty && q.messages > 0 {
			return txn.ErrQueueNotEmpty
		}
		if s.deadLettersTo[q.id] > 0 || s.forwardsTo[q.id] > 0 {
			return txn.ErrQueueInUse
		}
		if s.held(q).ops > 0 {
			return txn.ErrPreparedInUse
		}
	case txn.OpAlterQueue:
		c, fields := q.config.altered(o)
		return s.checkConfig(q, q.name, &c, fields, o.Mask)
	case txn.OpMove:
		return s.checkMove(o, sub)
	case txn.OpCreateSubscription, txn.OpCreateSubscriptionWith:
		return s.checkCreateSub(q, o)
	case txn.OpAlterSubscription:
		return s.checkDeadLetter(q, o.SubscriptionChange().Options.Policy.DeadLetter)
	case txn.OpPublish:
		return s.checkPublish(q, o)
	case txn.OpForward:
		s.added++
		return s.checkForward(o)
	case txn.OpSetForwards:
		return s.checkSetForwards(q, o)
	case txn.OpAck, txn.OpRelease:
		return s.checkRanges(o, sub, &checked.released)
	case txn.OpSeek:
		return checkSeek(q, sub, o)
	case txn.OpTake:
		return s.checkTake(o, sub, &checked.taken)
	case txn.OpPurge, txn.OpDeleteSubscription:
		return checkNotReserved(q, o.Sub)
	case txn.OpCreateQueue, txn.OpPutMeta, txn.OpSwapMeta, txn.OpDeleteMeta, txn.OpPrepare, txn.OpCommitPrepared,
		txn.OpRollbackPrepared, txn.OpDue, txn.OpAccess, txn.OpPause, txn.OpPolicy, txn.OpSite, txn.OpFleet, txn.OpOwn,
		txn.OpFence, txn.OpUnfence, txn.OpDropMoved, txn.OpImportBegin, txn.OpImport, txn.OpImportState, txn.OpTakeMoved,
		txn.OpCancelImport, txn.OpForgetMove:
	}
	return txn.OK
}

func (s *State) checkCreateSub(q *Queue, o *txn.Op) txn.Code {
	switch {
	case q.SubByName(string(o.Name)) != nil:
		return txn.ErrSubscriptionExists
	case q.SubCount() >= txn.MaxSubscriptions:
		return txn.ErrTooManySubscriptions
	case o.Sequence > q.nextSeq:
		return txn.ErrBeyondEnd
	}
	return s.checkDeadLetter(q, o.SubscriptionOptions().Policy.DeadLetter)
}

// checkNotReserved rejects the operation if a prepared transaction reserves messages of the subscription, or of any
// subscription if id is 0.
func checkNotReserved(q *Queue, id uint32) txn.Code {
	for _, sub := range q.subs {
		if sub.reserved != nil && (id == 0 || sub.id == id) {
			return txn.ErrPreparedInUse
		}
	}
	return txn.OK
}

func (s *State) checkCreate(o *txn.Op) txn.Code {
	owned := s.mayCreate()
	switch q := s.byName[string(o.Name)]; {
	case q != nil && q.fenced():
		return txn.ErrMoved
	case q != nil:
		return txn.ErrQueueExists
	case s.moves.names[string(o.Name)] != nil && !mutate.Off("INV-28-incoming-queue-is-created"):
		return txn.ErrMoved
	case !owned:
		return txn.ErrNotOwned
	case s.partitionsDiffer(string(o.Name)):
		return txn.ErrPartitionsDiffer
	}
	if s.queues.n+len(s.moves.incoming) >= s.limits.queues {
		return txn.ErrTooManyQueues
	}
	seen := make(map[string]bool, o.Count)
	for name := range o.Subscriptions {
		if seen[string(name)] {
			return txn.ErrSubscriptionExists
		}
		seen[string(name)] = true
	}
	return s.checkConfig(nil, string(o.Name), o.Config, o.Own(), txn.AllFields)
}

func (s *State) checkPublish(q *Queue, o *txn.Op) txn.Code {
	if err := o.CheckRecords(); err != nil {
		return codeOf(err)
	}
	if q.publishPaused() && !mutate.Off("INV-21-paused-queue-accepts-publishes") {
		return txn.ErrQueuePaused
	}
	s.published = publishedBefore{queue: o.Queue, count: o.Count, raw: o.Raw}
	s.findIDs(q, o)
	return s.checkRoom(q, o.Count, len(o.Raw))
}

func (s *State) checkRanges(o *txn.Op, sub *Sub, released *int) txn.Code {
	for r := range o.Ranges {
		if r.Last >= sub.q.nextSeq {
			return txn.ErrBeyondEnd
		}
		if first := max(r.First, sub.acks.floor); o.Code == txn.OpRelease && first <= r.Last {
			if r.Last-first >= uint64(s.limits.released-*released) {
				return txn.ErrTooManyReleased
			}
			*released += int(r.Last-first) + 1
		}
	}
	return txn.OK
}

// results returns a slice of n zero results. To reduce allocations, the slice is a part of a larger one.
func (s *State) results(n int) []txn.OpResult {
	if n > len(s.opSlab) {
		s.opSlab = make([]txn.OpResult, max(n, 128))
	}
	r := s.opSlab[:n:n]
	s.opSlab = s.opSlab[n:]
	return r
}

// change applies all operations. If wanted is set, it returns their fingerprint.
func (s *State) change(r *txn.Result, wanted bool) (fingerprint uint32) {
	s.reader.Rewind()
	r.Ops = s.results(s.reader.Ops() - s.added)
	if s.counted {
		s.counts.Transactions++
	}
	s.overflowed, s.expired, s.duplicates, s.duplicateBytes = 0, 0, 0, 0
	results := r.Ops
	for i := range s.reader.Ops() {
		o, err := s.reader.Next()
		if err != nil {
			panic(fmt.Sprintf("queue: operation %d of record %d is no longer valid: %v", i, r.LSN, err))
		}
		if s.sums.Reset(); o.Code == txn.OpPublish {
			s.reader.SumRecords(o, &s.sums)
		}
		if wanted {
			fingerprint = o.FingerprintWith(fingerprint, s.crc, &s.sums)
		}
		switch {
		case o.Code == txn.OpForward: // a forward has no result
			s.forward(s.queues.get(o.Queue), o)
			continue
		case o.Code == txn.OpOwn:
			q := s.own(o)
			if q == nil { // the operation that creates the queue has the result
				continue
			}
			results[0].ID = q.id
		case o.Code == txn.OpFleet:
			s.changeFleet(o)
		case o.Code == txn.OpAccess:
			results[0].Changed = s.changeAccess(o, r.LSN)
		case o.Code == txn.OpSwapMeta:
			sequence := uint64(0)
			if before := len(r.Ops) - len(results); before > 0 {
				sequence = r.Ops[before-1].FirstSequence
			}
			s.swapMeta(o, r.LSN, sequence)
			results[0].Changed = 1
		case o.Code == txn.OpPolicy:
			s.changePolicy(o)
		case o.Code.Moves():
			s.changeMove(o, &results[0])
		case o.Code >= txn.OpPrepare && o.Code <= txn.OpRollbackPrepared:
			s.changePrepared(o, r.LSN, &results[0])
		default:
			s.changeOp(o, &results[0])
		}
		if s.counted {
			s.counts.count(o, &results[0])
		}
		results = results[1:]
	}
	s.published.raw = nil
	if s.counted {
		s.counts.Overflowed += s.overflowed
		s.counts.Expired += s.expired
		s.counts.Duplicates += s.duplicates
		s.counts.PublishedBytes -= s.duplicateBytes
	}
	return fingerprint
}

func (s *State) changeOp(o *txn.Op, r *txn.OpResult) {
	switch o.Code { //nolint:exhaustive // the others require an existing queue
	case txn.OpCreateQueue:
		r.ID = s.createQueue(o)
		return
	case txn.OpPutMeta, txn.OpDeleteMeta:
		r.Changed = s.changeMeta(o)
		return
	case txn.OpDue:
		r.Changed = s.due(o)
		return
	}
	q := s.queues.get(o.Queue)
	s.mark(q)
	q.digest = mix(mix(q.digest, uint64(o.Code)), uint64(o.Sub))
	switch o.Code { //nolint:exhaustive // the others are handled above
	case txn.OpAlterQueue:
		s.alterQueue(q, o)
	case txn.OpDeleteQueue:
		if !q.staysTemporary(o) {
			break
		}
		r.Changed = q.messages
		s.deleteQueue(q)
	case txn.OpPurge:
		r.Changed = s.purge(q, o.Sub)
	case txn.OpCreateSubscription, txn.OpCreateSubscriptionWith:
		r.ID = uint64(s.createSub(q, string(o.Name), o.SubscriptionOptions(), o.Start, o.Sequence).id)
		q.digest = mix(mix(q.digest, r.ID), uint64(crc32.Checksum(o.Name, s.crc)))
		if len(o.Raw) > 0 {
			q.digest = mix(q.digest, uint64(crc32.Checksum(o.Raw, s.crc)))
		}
		if o.Start == txn.StartSequence {
			q.digest = mix(q.digest, o.Sequence)
		}
	case txn.OpDeleteSubscription:
		r.Changed = s.deleteSub(q, q.Sub(o.Sub))
	case txn.OpPublish:
		r.FirstSequence, r.Changed = q.nextSeq, uint64(o.Count)
		if q.config.DedupWindow != 0 {
			s.publishUnique(q, o, r)
		} else {
			s.publish(q, o)
		}
	case txn.OpAck, txn.OpTake:
		sub := q.subOf(o)
		for rg := range o.Ranges {
			r.Changed += s.ack(sub, rg.First, rg.Last)
		}
		q.digest = mix(q.digest, uint64(crc32.Checksum(o.Raw, s.crc)))
	case txn.OpRelease:
		r.Changed = s.release(q, o)
	case txn.OpMove:
		s.move(q, o, r)
	case txn.OpSeek:
		s.seek(q, o, r)
	case txn.OpSetForwards:
		s.setForwards(q, o)
	case txn.OpAlterSubscription:
		s.alterSub(q, o)
	case txn.OpPause:
		s.pause(q, o)
	case txn.OpCreateQueue, txn.OpPutMeta, txn.OpSwapMeta, txn.OpDeleteMeta, txn.OpPrepare, txn.OpCommitPrepared,
		txn.OpRollbackPrepared, txn.OpDue, txn.OpAccess, txn.OpPolicy, txn.OpSite, txn.OpFleet, txn.OpOwn, txn.OpFence,
		txn.OpUnfence, txn.OpDropMoved, txn.OpImportBegin, txn.OpImport, txn.OpImportState, txn.OpTakeMoved,
		txn.OpCancelImport, txn.OpForgetMove:
	}
	q.digest = mix(q.digest, r.Changed)
}

func (s *State) alterQueue(q *Queue, o *txn.Op) {
	before := q.config.ownConfig().DeadLetter
	c, fields := q.config.altered(o)
	s.configure(q, s.settingsOf(q, q.name, &c, fields))
	if c.DeadLetter != before {
		s.deadLettersChanged(q)
	}
}

// configure changes the effective configuration of a queue.
func (s *State) configure(q *Queue, c *settings) {
	s.touch(q) // dispatchers must re-evaluate the queue
	s.endWindow(q)
	s.setConfig(q, c)
	s.setRetention(q)
	s.removeIDs(q)
	if !q.keepsSizes() {
		q.sizes.dropSizes(&s.sizePool)
	}
	q.mixConfig()
}

func (s *State) publish(q *Queue, o *txn.Op) {
	q.digest = mix(mix(q.digest, q.nextSeq), uint64(s.sums.Of(o)))
	s.touch(q)
	s.published = publishedBefore{queue: o.Queue, count: o.Count, raw: o.Raw, first: q.nextSeq, kept: len(q.subs) > 0}
	if len(q.subs) == 0 {
		q.nextSeq += uint64(o.Count)
		return
	}
	s.makeRoom(q, o.Count, len(o.Raw))
	if q.tail.n == 0 {
		q.tail.first = q.nextSeq
		q.tail.reserve(o.Count)
		s.linkTail(q)
	}
	i := 0
	for rec := range o.Records {
		s.push(q, rec, s.sums.Record(i))
		i++
	}
}

// publishUnique publishes the messages that are not duplicates (INV-23).
func (s *State) publishUnique(q *Queue, o *txn.Op, r *txn.OpResult) {
	q.digest = mix(mix(q.digest, q.nextSeq), uint64(s.sums.Of(o)))
	s.touch(q)
	var found txn.Duplicates
	first, kept, i := q.nextSeq, len(q.subs) > 0, 0
	for rec := range o.Records {
		if sequence, ok := s.isDuplicate(q, rec); ok {
			found = append(found, txn.Duplicate{Index: uint32(i), Sequence: sequence})
			s.duplicateBytes += uint64(len(rec))
		} else {
			s.append(q, rec, s.sums.Record(i))
		}
		i++
	}
	s.published = publishedBefore{
		queue: o.Queue, count: o.Count, raw: o.Raw, first: first, kept: kept, duplicates: found,
	}
	if len(found) == 0 {
		return
	}
	if len(found) == o.Count {
		r.FirstSequence = found[0].Sequence
	}
	r.Changed -= uint64(len(found))
	r.Duplicates = &found
}

// push appends a message to the tail of q. The tail must be linked. sum is the CRC32C of the message, or 0 if unknown.
func (s *State) push(q *Queue, rec []byte, sum uint32) {
	seq, size := q.nextSeq, uint64(len(rec))
	if q.lanes != nil {
		q.lanes.add(seq, txn.RecordPriority(rec))
	}
	before := q.tail.bytes
	q.tail.push(rec, sum)
	s.tailBytes += q.tail.bytes - before
	if q.keepsSizes() {
		s.keepSize(q, size)
	}
	q.sizes.add(&s.sizePool, seq, size)
	if txn.RecordHasAttributes(rec) {
		s.scheduleMessage(q, seq, rec)
	}
	q.nextSeq++
	q.messages++
	q.bytes += size
	s.messages++
	s.bytes += size
}

// ack acknowledges the published sequences first to last for a subscription, and returns the number of sequences newly
// acknowledged. It removes messages that no subscription needs any longer. The caller must mark the queue.
func (s *State) ack(sub *Sub, first, last uint64) (changed uint64) {
	q := sub.q
	first = max(first, sub.acks.floor)
	for first <= last {
		chunk := first >> chunkBits
		lo, hi := first&chunkMask, min(last, chunk<<chunkBits|chunkMask)&chunkMask
		first = (chunk + 1) << chunkBits
		n := sub.acks.add(&s.ackPool, chunk, lo, hi, &s.newly)
		if n == 0 {
			continue
		}
		changed += n
		sub.counts.remove(chunk, lo, hi)
		for w := int(lo >> 6); w <= int(hi>>6); w++ {
			if dead := q.othersAcked(sub, chunk, w, s.newly[w]); dead != 0 {
				s.markDead(q, chunk, w, dead)
			}
		}
	}
	if changed > 0 {
		sub.dirty = true
		s.trimTail(q)
	}
	return changed
}

func (s *State) release(q *Queue, o *txn.Op) (changed uint64) {
	sub := q.Sub(o.Sub)
	for r := range o.Ranges {
		for seq := sub.NextUnacked(r.First); seq <= r.Last; seq = sub.NextUnacked(seq + 1) {
			if sub.counts == nil {
				sub.counts = new(countSet)
			}
			sub.counts.increment(seq)
			changed++
		}
	}
	sub.dirty = true
	s.touch(q)
	q.digest = mix(q.digest, uint64(crc32.Checksum(o.Raw, s.crc)))
	return changed
}

func (s *State) purge(q *Queue, id uint32) (changed uint64) {
	for _, sub := range q.subs {
		if id == 0 || sub.id == id {
			changed = max(changed, s.ack(sub, sub.acks.floor, q.nextSeq-1))
		}
	}
	s.touch(q)
	return changed
}

func (s *State) createQueue(o *txn.Op) uint64 {
	q := &Queue{id: s.nextQueue, name: string(o.Name), nextSeq: 1, nextSub: 1, collected: 1, extras: &noExtras}
	s.setConfig(q, s.settingsOf(nil, q.name, o.Config, o.Own()))
	if o.Config.Priorities != 0 {
		q.own().lanes = newPriorityIndex()
	}
	s.nextQueue++
	q.tail.first = 1
	q.digest = mix(mix(q.id, uint64(crc32.Checksum(o.Name, s.crc))), uint64(crc32.Checksum(o.Raw, s.crc)))
	q.mixConfig()
	s.takeEpoch(q)
	s.addQueue(q)
	s.mark(q)
	for name := range o.Subscriptions {
		s.createSub(q, string(name), txn.SubscriptionOptions{}, txn.StartLatest, 0)
	}
	s.setRetention(q)
	q.subs = slices.Clip(q.subs)
	return q.id
}

// mixConfig adds the configuration to the queue's digest. A plain configuration adds the same values as in releases
// before 0.2.0.
func (q *Queue) mixConfig() {
	q.digest = mix(mix(q.digest, q.config.MaxMessages), q.config.MaxBytes)
	if q.config.Plain() {
		return
	}
	for field, v := range q.config.Values {
		if field&txn.PlainFields == 0 && v != 0 {
			q.digest = mix(mix(q.digest, uint64(field)), v)
		}
	}
}

func (s *State) addQueue(q *Queue) {
	s.queues.put(q)
	s.byName[q.name] = q
	s.names.insert(q)
}

func (s *State) deleteQueue(q *Queue) {
	s.touch(q)
	for id := range q.deadLetters {
		addReferences(s.deadLettersTo, id, -1)
	}
	s.countForwards(q, -1)
	delete(s.expiring, q.id)
	delete(s.temporary, q.id)
	delete(s.ttls, q.id)
	delete(s.paused, q.id)
	s.queues.remove(q)
	delete(s.byName, q.name)
	s.names.remove(q)
	s.removeContent(q)
}

// removeContent removes a deleted queue from the totals, and records that its data must be removed.
func (s *State) removeContent(q *Queue) {
	q.deleted = true
	s.messages -= q.messages
	s.bytes -= q.bytes
	s.delayed -= q.DelayedMessages()
	s.tailBytes -= q.tail.bytes
	if q.tail.n > 0 {
		s.unlinkTail(q)
	}
	s.deleted = append(s.deleted, q.id)
}

// staysTemporary reports whether an OpDeleteQueue may delete the queue (INV-18).
func (q *Queue) staysTemporary(o *txn.Op) bool {
	return o.Temporary == 0 || o.Temporary == q.config.TemporaryGrace ||
		mutate.Off("INV-18-altered-queue-is-deleted-as-temporary")
}

func (s *State) createSub(q *Queue, name string, o txn.SubscriptionOptions, start txn.Start, seq uint64) *Sub {
	sub := &Sub{q: q, id: q.nextSub, dirty: true}
	sub.setOptions(name, o)
	addReferences(s.deadLettersTo, sub.deadLetter(), 1)
	q.nextSub++
	sub.acks.floor = q.nextSeq
	switch start {
	case txn.StartEarliest:
		sub.acks = s.deadFrom(q, q.lowestFloor())
	case txn.StartSequence:
		sub.acks = s.deadFrom(q, seq)
	case txn.StartLatest:
	}
	sub.start = sub.acks.floor
	q.subs = slices.Insert(q.subs, len(q.clients()), sub)
	if sub.deadLetter() != txn.NoQueue {
		s.deadLettersChanged(q)
	}
	return sub
}

func (q *Queue) lowestFloor() uint64 {
	floor := q.nextSeq
	for _, sub := range q.subs {
		floor = min(floor, sub.acks.floor)
	}
	return floor
}

func belowMask(n uint64) uint64 {
	if n >= 64 {
		return ^uint64(0)
	}
	return 1<<n - 1
}

// deleteSub deletes a subscription and returns the number of messages that only this subscription needed.
func (s *State) deleteSub(q *Queue, sub *Sub) uint64 {
	s.touch(q)
	if id := sub.deadLetter(); id != txn.NoQueue {
		addReferences(s.deadLettersTo, id, -1)
		delete(q.policies, sub.id)
		s.deadLettersChanged(q)
	}
	delete(q.policies, sub.id)
	s.setPause(q, sub.id, txn.Pause{})
	before := q.messages
	base, n := q.sizes.base, len(q.sizes.slots)
	for i := range n {
		chunk := base + uint64(i)
		for w := range chunkWords {
			c := q.sizes.chunk(chunk) // markDead may have dropped it
			if c == nil {
				break
			}
			if c.group(w).alive() == 0 {
				continue
			}
			dead := q.ackedByAll(sub, chunk, w) &^ sub.acks.word(chunk, w) & published(chunk, w, q.nextSeq)
			if dead != 0 {
				s.markDead(q, chunk, w, dead)
			}
		}
	}
	q.subs = slices.Delete(q.subs, slices.Index(q.subs, sub), slices.Index(q.subs, sub)+1)
	q.slow = 0
	q.dropKeys(sub)
	s.trimTail(q)
	if len(q.subs) == 0 && q.tail.n > 0 {
		// All messages are dead, but a batch still contains some.
		s.tailBytes -= q.tail.bytes
		q.tail = tail{first: q.nextSeq, shared: q.tail.shared}
		s.unlinkTail(q)
	}
	return before - q.messages
}
