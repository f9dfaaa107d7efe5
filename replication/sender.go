// SPDX-License-Identifier: Apache-2.0

package replication

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/lockstep-mq/lockstep/store/iolock"
	"github.com/lockstep-mq/lockstep/store/lsn"
	"github.com/lockstep-mq/lockstep/store/wal"
)

const (
	// joinBytes limits the size of batches copied into one message: a copy is cheaper than a message.
	joinBytes     = 64 << 10
	holdStepBytes = 1 << 20
	// directBytes is the maximum number of bytes in flight for sends by the committer. gRPC buffers 64 KiB before it
	// blocks.
	directBytes = 32 << 10
	// pollNotices is the number of CommitNotice intervals for which the sender polls for the commit of the last
	// records.
	pollNotices     = 10
	commitTimeEvery = 50 * time.Millisecond
)

// sender sends the log to one standby: from the memory tail if the standby is close behind, otherwise from the log
// files. While little is in flight, the committer sends new batches directly (sendNow).
type sender struct {
	s *session
	p *Primary
	// hold retains the unacknowledged log. Acknowledged log is released in steps. hold must be created before the logs
	// are matched. When the session ends, the ownership of hold passes to Primary.retain.
	hold *wal.Hold

	// mu is held by the sending goroutine, and guards the fields below. Primary.mu may be locked while it is held.
	mu iolock.Mutex
	// responded is set when the hello response was sent.
	responded bool
	// cursor is the position of the last record sent. lastRecords is the time when it was sent.
	cursor      lsn.Position
	lastRecords time.Time
	sentCommit  uint64
	lastSent    time.Time
	lastTime    time.Time // when the commit latency was last sent
	batches     []batch
	heldBytes   int
	released    uint64 // hold begins after this LSN

	reader *wal.Reader
}

func (s *session) send(w HelloResponse) {
	defer s.p.wg.Done()
	s.end(s.sender.run(&w))
	s.p.retain(s)
}

func (sd *sender) run(w *HelloResponse) error {
	t := time.NewTimer(sd.p.o.Heartbeat)
	defer t.Stop()
	for {
		wait, err := sd.step(w)
		if err != nil {
			return err
		}
		if wait <= 0 {
			select {
			case <-sd.s.done:
				return sd.s.err
			default:
				continue
			}
		}
		t.Reset(wait)
		select {
		case <-sd.s.done:
			return sd.s.err
		case <-sd.s.wake:
		case <-t.C:
		}
	}
}

func (sd *sender) step(w *HelloResponse) (wait time.Duration, err error) {
	sd.mu.Lock()
	defer sd.mu.Unlock()
	if !sd.responded {
		if err := sd.post(&ActiveMessage{HelloResponse: w}); err != nil {
			return 0, err
		}
		sd.responded = true
	}
	more, err := sd.sendRecords()
	if err != nil {
		return 0, err
	}
	sd.checkCaughtUp()
	if more {
		return 0, nil
	}
	return sd.idle()
}

// idle sends a message without records if one is due. It returns the time until the next message, or 0 if it must be
// called again.
func (sd *sender) idle() (wait time.Duration, err error) {
	now := time.Now()
	at := sd.lastSent.Add(sd.p.o.Heartbeat)
	stalled := sd.p.io.stalled(sd.p.o.DiskStallTimeout)
	// While the disk is stalled, nothing is sent.
	if notice := sd.noticeDeadline(now); !notice.IsZero() && notice.Before(at) && !stalled {
		at = notice
	}
	urgent := sd.s.urgent.Swap(false)
	if wait := at.Sub(now); wait > 0 && !urgent {
		return wait, nil
	}
	if !urgent && stalled {
		sd.lastSent = now // a node with a stalled disk must not appear alive
		return 0, nil
	}
	sd.release()
	return 0, sd.post(&ActiveMessage{})
}

// noticeDeadline returns the time at which to send the commit LSN, or to poll for a new one. The zero time means that
// no poll is necessary.
func (sd *sender) noticeDeadline(now time.Time) time.Time {
	sd.s.polls.Store(false) // before commit is read: later commits see this flag
	commit := sd.p.commit.Load()
	switch notice := sd.p.o.CommitNotice; {
	case commit > sd.sentCommit:
		sd.s.polls.Store(true)
		return sd.lastSent.Add(notice)
	case commit < sd.cursor.LSN && now.Sub(sd.lastRecords) < pollNotices*notice:
		sd.s.polls.Store(true)
		return now.Add(notice)
	default:
		return time.Time{}
	}
}

// sendNow sends newly published batches without waking the sender's goroutine. It returns false and sends nothing if
// the sender is behind or busy, if the acks of the standby are not required, or if a send might block. The caller
// must then wake the goroutine.
func (sd *sender) sendNow(batches []batch) bool {
	if !sd.mu.TryLock() {
		return false
	}
	defer sd.mu.Unlock()
	// More than one batch exceeds the limit: a batch is closed only when it is full.
	b := batches[0]
	if len(batches) > 1 || !sd.responded || sd.cursor != b.prev || !sd.canSend(len(b.frames)) {
		return false
	}
	if err := sd.sendFrames(b.frames, b.end, batches); err != nil {
		sd.s.end(err)
	}
	return true
}

// canSend reports whether the standby's acks are required, and more bytes can be sent without blocking.
func (sd *sender) canSend(more int) bool {
	sd.p.mu.Lock()
	required := sd.p.requires(sd.s)
	sd.p.mu.Unlock()
	return required && sd.s.window.inFlight()+more <= directBytes
}

// post sets the common fields (INV-1) and sends the message.
func (sd *sender) post(m *ActiveMessage) error {
	p := sd.p
	p.mu.Lock()
	ended := p.ended
	m.Config, m.Term = p.cfg.Config, p.o.Term
	m.AckRequired = p.requires(sd.s)
	// Config and commit LSN are read under one lock. An in-sync standby that receives a commit LSN beyond its log, with a
	// config that lists the standby, reports that its store was restored from an older copy.
	m.CommitLSN = p.commit.Load()
	p.mu.Unlock()
	if ended {
		return errStopped
	}
	sd.sentCommit, sd.lastSent = m.CommitLSN, time.Now()
	if sd.lastSent.Sub(sd.lastTime) >= commitTimeEvery {
		m.CommitTime, sd.lastTime = p.o.Store.Governor().CommitTime(), sd.lastSent
	}
	if err := sd.s.stream.Send(m); err != nil {
		return fmt.Errorf("send to standby: %w", err)
	}
	return nil
}

func (sd *sender) sendRecords() (bool, error) {
	free := sd.s.window.free(sd.p.o.WindowBytes)
	if free <= 0 {
		return false, nil
	}
	limit := min(free, sd.p.o.BatchBytes)
	var ok bool
	var err error
	sd.batches, ok, err = sd.p.tail.after(sd.cursor.LSN, limit, sd.batches[:0])
	switch {
	case err != nil:
		return false, err
	case !ok:
		return sd.sendFromLog(limit)
	case len(sd.batches) == 0:
		return false, nil
	}
	sd.reader = nil
	defer clear(sd.batches)
	for rest := sd.batches; len(rest) > 0; {
		n, frames := join(rest)
		if err := sd.sendFrames(frames, rest[n-1].end, rest[:n]); err != nil {
			return false, err
		}
		rest = rest[n:]
	}
	return true, nil
}

// join concatenates the frames of the first n batches, up to joinBytes but at least one. A single batch is not
// copied.
func join(batches []batch) (n int, frames []byte) {
	size := 0
	for n < len(batches) && (n == 0 || size+len(batches[n].frames) <= joinBytes) {
		size += len(batches[n].frames)
		n++
	}
	if n == 1 {
		return 1, batches[0].frames
	}
	frames = make([]byte, 0, size)
	for _, b := range batches[:n] {
		frames = append(frames, b.frames...)
	}
	return n, frames
}

func (sd *sender) sendFromLog(limit int) (bool, error) {
	if sd.reader == nil {
		r, err := sd.p.o.Store.ReadLog(sd.cursor.LSN + 1)
		if err != nil {
			sd.p.o.Store.Repair().NoteLogError(err)
			return false, fmt.Errorf("catch-up after %v: %w", sd.cursor, err)
		}
		sd.reader = r
	}
	frames, last, n, err := sd.reader.ReadBatch(limit)
	if err != nil && !errors.Is(err, io.EOF) {
		// The repair may discard that part of the log. The standby then needs a snapshot.
		sd.p.o.Store.Repair().NoteLogError(err)
		return false, fmt.Errorf("catch-up after %v: %w", sd.cursor, err)
	}
	if n == 0 {
		return false, nil
	}
	// The reader reuses its buffer, and the stream retains the records it sends.
	if err := sd.sendFrames(slices.Clone(frames), last, nil); err != nil {
		return false, err
	}
	return true, nil
}

// release releases the log up to the last acknowledged record. The standby needs the rest after a reconnect.
func (sd *sender) release() {
	sd.heldBytes = 0
	if acked := sd.s.acked.Load(); acked > sd.released {
		sd.hold.Advance(acked + 1)
		sd.released = acked
	}
}

// sendFrames sends frames, which follow the cursor and end at end, in fragments of at most BatchBytes. batches, if not
// empty, contain the frames.
func (sd *sender) sendFrames(frames []byte, end lsn.Position, batches []batch) error {
	prev := sd.cursor
	p := sd.p
	sd.lastRecords = time.Now()
	span := startFlightSpan(batches)
	sd.s.window.add(sent{end: end, bytes: len(frames), at: sd.lastRecords, span: span})
	sd.heldBytes += len(frames)
	for len(frames) > p.o.BatchBytes {
		if err := sd.post(&ActiveMessage{Previous: prev, Records: frames[:p.o.BatchBytes]}); err != nil {
			return err
		}
		frames = frames[p.o.BatchBytes:]
	}
	sd.cursor = end
	if sd.heldBytes >= holdStepBytes {
		sd.release()
	}
	m := &ActiveMessage{Previous: prev, Records: frames, Last: end}
	if span != nil {
		m.Trace = new(span.Context())
	}
	return sd.post(m)
}

// checkCaughtUp reports once that the unacknowledged records are in memory and fit in the window.
func (sd *sender) checkCaughtUp() {
	p, s := sd.p, sd.s
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.session != s || p.peer.caughtUp {
		return
	}
	if behind, ok := p.tail.behind(p.peer.acked.LSN); ok && behind <= p.o.WindowBytes {
		p.peer.caughtUp = true
		p.events.post(StandbyCaughtUp{Member: s.member})
	}
}
