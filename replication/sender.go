package replication

import (
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/lockstep-mq/lockstep/store/lsn"
	"github.com/lockstep-mq/lockstep/store/wal"
)

const (
	// joinBytes is up to where waiting batches are copied together into one message: a copy is cheaper than a message.
	joinBytes = 64 << 10
	// holdStepBytes is how often, in catch-up, the log is given free behind the reader.
	holdStepBytes = 16 << 20
)

// sender sends the log to one standby: from the memory tail if the standby is near, else from the log files.
type sender struct {
	s *session
	p *Primary
	// cursor is the last record that was sent.
	cursor lsn.Position
	// sentCommit is the commit LSN that was sent last, at lastSent; commitSince is when a newer one was first seen.
	sentCommit  uint64
	lastSent    time.Time
	commitSince time.Time
	batches     []batch

	// reader, while not nil, reads the log files, which are held from heldFrom on.
	reader    *wal.Reader
	hold      *wal.Hold
	heldBytes int
}

// send is the session's sending goroutine.
func (s *session) send(w Welcome) {
	defer s.p.wg.Done()
	sd := &sender{s: s, p: s.p, cursor: w.ResumeAfter}
	defer sd.closeReader()
	s.end(sd.run(&w))
}

func (sd *sender) run(w *Welcome) error {
	if err := sd.post(&ActiveMessage{Welcome: w}); err != nil {
		return err
	}
	t := time.NewTimer(sd.p.o.Heartbeat)
	defer t.Stop()
	for {
		more, err := sd.sendRecords()
		if err != nil {
			return err
		}
		sd.checkCaughtUp()
		if more {
			select {
			case <-sd.s.done:
				return sd.s.err
			default:
				continue
			}
		}
		if err := sd.idle(t); err != nil {
			return err
		}
	}
}

// idle waits until there may be something to send, and sends a message without records when it is time for one.
func (sd *sender) idle(t *time.Timer) error {
	now := time.Now()
	at := sd.lastSent.Add(sd.p.o.Heartbeat)
	stalled := sd.p.io.stalled(sd.p.o.DiskStallTimeout)
	if sd.p.commit.Load() > sd.sentCommit && !stalled { // stalled: it is not sent, and would be due for ever
		// An idle standby must not wait for the next heartbeat to apply what is committed; a busy one gets it with the
		// next batch.
		if sd.commitSince.IsZero() {
			sd.commitSince = now
		}
		if soon := sd.commitSince.Add(sd.p.o.CommitNotice); soon.Before(at) {
			at = soon
		}
	}
	tell := sd.s.tell.Swap(false)
	if wait := at.Sub(now); wait > 0 && !tell {
		t.Reset(wait)
		select {
		case <-sd.s.done:
			return sd.s.err
		case <-sd.s.wake:
		case <-t.C:
		}
		return nil
	}
	if !tell && stalled {
		sd.lastSent = now // a node whose disk does not answer must not look alive
		return nil
	}
	return sd.post(&ActiveMessage{})
}

// post fills in what every message carries (INV-1) and sends it.
func (sd *sender) post(m *ActiveMessage) error {
	p := sd.p
	p.mu.Lock()
	ended := p.ended
	m.Config, m.Term = p.cfg.Config, p.o.Term
	m.AckRequired = p.requires(sd.s)
	p.mu.Unlock()
	if ended {
		return errStopped
	}
	m.CommitLSN = p.commit.Load()
	sd.sentCommit, sd.lastSent, sd.commitSince = m.CommitLSN, time.Now(), time.Time{}
	if err := sd.s.stream.Send(m); err != nil {
		return fmt.Errorf("send to the standby: %w", err)
	}
	return nil
}

// sendRecords sends the next records if there are any and the window has room. It tells whether it did.
func (sd *sender) sendRecords() (bool, error) {
	room := sd.room()
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
	sd.closeReader()
	defer clear(sd.batches)
	for rest := sd.batches; len(rest) > 0; {
		n, frames := join(rest)
		if err := sd.sendFrames(frames, rest[n-1].end); err != nil {
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
		sd.hold = sd.p.o.Store.HoldLog(sd.cursor.LSN + 1)
		r, err := sd.p.o.Store.ReadLog(sd.cursor.LSN + 1)
		if err != nil {
			sd.p.o.Store.LogDamaged(err)
			return false, fmt.Errorf("catch-up after %v: %w", sd.cursor, err)
		}
		sd.reader, sd.heldBytes = r, 0
	}
	frames, last, n, err := sd.reader.ReadBatch(limit)
	if err != nil && !errors.Is(err, io.EOF) {
		sd.p.o.Store.LogDamaged(err) // when that part is given up, the standby gets a snapshot
		return false, fmt.Errorf("catch-up after %v: %w", sd.cursor, err)
	}
	if n == 0 {
		return false, nil
	}
	if err := sd.sendFrames(frames, last); err != nil {
		return false, err
	}
	if sd.heldBytes += len(frames); sd.heldBytes >= holdStepBytes {
		next := sd.p.o.Store.HoldLog(sd.cursor.LSN + 1)
		sd.hold.Release()
		sd.hold, sd.heldBytes = next, 0
	}
	return true, nil
}

func (sd *sender) closeReader() {
	sd.reader = nil
	if sd.hold != nil {
		sd.hold.Release()
		sd.hold = nil
	}
}

// sendFrames sends the frames that follow the cursor and end with end, in pieces of at most a batch's size.
func (sd *sender) sendFrames(frames []byte, end lsn.Position) error {
	prev := sd.cursor
	p := sd.p
	p.mu.Lock()
	if len(sd.s.inFlight) == 0 {
		sd.s.progress = time.Now()
	}
	sd.s.inFlight = append(sd.s.inFlight, sent{end: end, bytes: len(frames)})
	sd.s.inFlightBytes += len(frames)
	p.mu.Unlock()
	for len(frames) > p.o.BatchBytes {
		if err := sd.post(&ActiveMessage{Previous: prev, Records: frames[:p.o.BatchBytes]}); err != nil {
			return err
		}
		frames = frames[p.o.BatchBytes:]
	}
	sd.cursor = end
	return sd.post(&ActiveMessage{Previous: prev, Records: frames, Last: end})
}

// room is how much may be sent now; when it is none, the next ack wakes the sender.
func (sd *sender) room() int {
	sd.p.mu.Lock()
	defer sd.p.mu.Unlock()
	room := sd.p.o.WindowBytes - sd.s.inFlightBytes
	sd.s.windowFull = room <= 0
	return room
}

// checkCaughtUp reports, once, that the standby is within the window: what it has not acknowledged is in memory and not
// more than may be in flight.
func (sd *sender) checkCaughtUp() {
	p, s := sd.p, sd.s
	p.mu.Lock()
	defer p.mu.Unlock()
	if s.caughtUp || p.session != s {
		return
	}
	if behind, ok := p.tail.behind(s.acked.LSN); ok && behind <= p.o.WindowBytes {
		s.caughtUp = true
		p.events.post(StandbyCaughtUp{Member: s.member})
	}
}
