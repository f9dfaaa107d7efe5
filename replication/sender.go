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
	// joinBytes is up to where waiting batches are copied together into one message: a copy is cheaper than a message.
	joinBytes = 64 << 10
	// holdStepBytes is how often the log is given free behind the sender.
	holdStepBytes = 1 << 20
	// quietBytes is how much may be under way when the committer sends by itself. gRPC takes 64 KiB before it makes the
	// sender of a stream wait.
	quietBytes = 32 << 10
	// pollNotices is for how many CommitNotices after the last records the sender looks for their commit by itself.
	pollNotices = 10
	// commitTimeEvery is how often a standby is told how long commits take.
	commitTimeEvery = 50 * time.Millisecond
)

// sender sends the log to one standby: from the memory tail if the standby is near, else from the log files. A
// goroutine of its own does; what is committed while little is under way is sent by the committer itself (sendNow).
type sender struct {
	s *session
	p *Primary
	// hold keeps in the log what was not acknowledged yet, and heldBytes more, about. It begins before the logs are
	// matched: checkpoints go on, and the snapshot that the standby comes from is let go when it is registered. When the
	// session ends, Primary.retain has it.
	hold *wal.Hold

	mu iolock.Mutex // is held by the goroutine that sends; guards all below. Primary.mu may be locked while it is held
	// welcomed: the standby was told where to begin.
	welcomed bool
	// cursor is the last record that was sent, at lastRecords.
	cursor      lsn.Position
	lastRecords time.Time
	// sentCommit is the commit LSN that was sent last, at lastSent.
	sentCommit uint64
	lastSent   time.Time
	lastTime   time.Time // when the standby was told how long commits take
	batches    []batch
	heldBytes  int
	released   uint64 // hold begins after it

	// reader, while not nil, reads the log files.
	reader *wal.Reader
}

// send is the session's sending goroutine.
func (s *session) send(w Welcome) {
	defer s.p.wg.Done()
	s.end(s.sender.run(&w))
	s.p.retain(s)
}

func (sd *sender) run(w *Welcome) error {
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

// step sends what is to be sent, and returns how long there may be nothing to do unless the sender is woken. w is sent
// first.
func (sd *sender) step(w *Welcome) (wait time.Duration, err error) {
	sd.mu.Lock()
	defer sd.mu.Unlock()
	if !sd.welcomed {
		if err := sd.post(&ActiveMessage{Welcome: w}); err != nil {
			return 0, err
		}
		sd.welcomed = true
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

// idle sends a message without records if it is time for one, and returns how long it is until then.
func (sd *sender) idle() (wait time.Duration, err error) {
	now := time.Now()
	at := sd.lastSent.Add(sd.p.o.Heartbeat)
	stalled := sd.p.io.stalled(sd.p.o.DiskStallTimeout)
	// With a stalled disk a notice would be due for ever.
	if notice := sd.noticeAt(now); !notice.IsZero() && notice.Before(at) && !stalled {
		at = notice
	}
	tell := sd.s.tell.Swap(false)
	if wait := at.Sub(now); wait > 0 && !tell {
		return wait, nil
	}
	if !tell && stalled {
		sd.lastSent = now // a node whose disk does not answer must not look alive
		return 0, nil
	}
	sd.giveFree()
	return 0, sd.post(&ActiveMessage{})
}

// noticeAt returns when the commit LSN is to be looked at again, or sent: an idle standby must not wait for the next
// heartbeat to apply what is committed, and a busy one gets it with the next batch. The zero time means that advance
// wakes the sender: only then, since to wake it for each transaction would cost more than to look once in a while.
func (sd *sender) noticeAt(now time.Time) time.Time {
	sd.s.polls.Store(false) // before commit is read: what moves it later sees this
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

// sendNow sends batches that were just published, without waking the sender's goroutine. It returns false, and has done
// nothing, when the sender is behind or at work, when no transaction waits for the standby, or when a send might have
// to wait: then the goroutine must be woken.
func (sd *sender) sendNow(batches []batch) bool {
	if !sd.mu.TryLock() {
		return false
	}
	defer sd.mu.Unlock()
	// More than one are never little: a batch is closed when it is full.
	b := batches[0]
	if len(batches) > 1 || !sd.welcomed || sd.cursor != b.prev || !sd.isQuiet(len(b.frames)) {
		return false
	}
	if err := sd.sendFrames(b.frames, b.end, batches); err != nil {
		sd.s.end(err)
	}
	return true
}

// isQuiet tells whether so little is under way to a standby that transactions wait for that so many bytes more can be
// sent without waiting: less than what gRPC takes without asking.
func (sd *sender) isQuiet(more int) bool {
	sd.p.mu.Lock()
	required := sd.p.requires(sd.s)
	sd.p.mu.Unlock()
	return required && sd.s.window.inFlight()+more <= quietBytes
}

// post fills in what every message carries (INV-1) and sends it.
func (sd *sender) post(m *ActiveMessage) error {
	p := sd.p
	p.mu.Lock()
	ended := p.ended
	m.Config, m.Term = p.cfg.Config, p.o.Term
	m.AckRequired = p.requires(sd.s)
	// Both at one moment: a standby in sync that hears of commits beyond its log under the config that names it takes
	// itself for put back.
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
		return fmt.Errorf("send to the standby: %w", err)
	}
	return nil
}

// sendRecords sends the next records if there are any and the window has room. It tells whether it did.
func (sd *sender) sendRecords() (bool, error) {
	room := sd.s.window.room(sd.p.o.WindowBytes)
	if room <= 0 {
		return false, nil
	}
	limit := min(room, sd.p.o.BatchBytes)
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

// join returns the frames of the first batches together: of one, without a copy, or of as many small ones as fit.
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

// sendFromLog is the catch-up of a standby that is further behind than the memory tail.
func (sd *sender) sendFromLog(limit int) (bool, error) {
	if sd.reader == nil {
		r, err := sd.p.o.Store.ReadLog(sd.cursor.LSN + 1)
		if err != nil {
			sd.p.o.Store.LogDamaged(err)
			return false, fmt.Errorf("catch-up after %v: %w", sd.cursor, err)
		}
		sd.reader = r
	}
	frames, last, n, err := sd.reader.ReadBatch(limit)
	if err != nil && !errors.Is(err, io.EOF) {
		sd.p.o.Store.LogDamaged(err) // when that part is given up, the standby gets a snapshot
		return false, fmt.Errorf("catch-up after %v: %w", sd.cursor, err)
	}
	if n == 0 {
		return false, nil
	}
	// The reader uses its memory again, and the stream keeps what it sends.
	if err := sd.sendFrames(slices.Clone(frames), last, nil); err != nil {
		return false, err
	}
	return true, nil
}

// giveFree releases the log up to what the standby has acknowledged: after a reconnect it needs what it has not,
// although that was sent.
func (sd *sender) giveFree() {
	sd.heldBytes = 0
	if acked := sd.s.acked.Load(); acked > sd.released {
		sd.hold.Advance(acked + 1)
		sd.released = acked
	}
}

// sendFrames sends the frames that follow the cursor and end with end, in pieces of at most a batch's size. They are
// those of batches, if that is not empty.
func (sd *sender) sendFrames(frames []byte, end lsn.Position, batches []batch) error {
	prev := sd.cursor
	p := sd.p
	sd.lastRecords = time.Now()
	way := beginWay(batches)
	sd.s.window.add(sent{end: end, bytes: len(frames), at: sd.lastRecords, way: way})
	sd.heldBytes += len(frames)
	for len(frames) > p.o.BatchBytes {
		if err := sd.post(&ActiveMessage{Previous: prev, Records: frames[:p.o.BatchBytes]}); err != nil {
			return err
		}
		frames = frames[p.o.BatchBytes:]
	}
	sd.cursor = end
	if sd.heldBytes >= holdStepBytes {
		sd.giveFree()
	}
	m := &ActiveMessage{Previous: prev, Records: frames, Last: end}
	if way != nil {
		m.Trace = new(way.Context())
	}
	return sd.post(m)
}

// checkCaughtUp reports, once, that the standby is within the window: what it has not acknowledged is in memory and not
// more than may be in flight.
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
