// SPDX-License-Identifier: Apache-2.0

package raft

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"

	hraft "github.com/hashicorp/raft"

	"github.com/lockstep-mq/lockstep/failover"
	"github.com/lockstep-mq/lockstep/failover/coordinator/internal/latest"
)

// maxStateBytes bounds a snapshot that is restored. A real one has a few KiB.
const maxStateBytes = 1 << 20

// state is everything that the voters agree on: the pair's record, as bytes that they do not look into. Who is alive is
// not in here: that needs a clock, and three clocks do not agree.
type state struct {
	// Revision of the newest record; +1 with each write.
	Revision int64 `json:"revision"`
	// OpID of the operation that wrote it.
	OpID string `json:"op_id,omitempty"`
	// Record, encoded; nil if there is none.
	Record json.RawMessage `json:"record,omitempty"`
	// Recoveries counts the times that a lost quorum was recovered by force.
	Recoveries uint64 `json:"recoveries"`
	// Mark is how far the pair was known to have committed; nil until all voters were known to keep one.
	Mark *failover.Mark `json:"mark,omitempty"`
}

// mark is the highest mark that was written; zero if none was.
func (s state) mark() failover.Mark {
	if s.Mark == nil {
		return failover.Mark{}
	}
	return *s.Mark
}

// at is the revision that a swap must expect.
func (s state) at() int64 {
	if s.Record == nil {
		return 0
	}
	return s.Revision
}

// command is a log entry: a compare-and-swap of the record or, without a record, a mark. A voter of 0.1.0 takes an
// entry without a record for none and changes nothing; see Voter.mark on how it never gets one.
type command struct {
	Expect int64           `json:"expect"`
	OpID   string          `json:"op_id"`
	Record json.RawMessage `json:"record,omitempty"`
	Mark   *failover.Mark  `json:"mark,omitempty"`
}

// swapped is what a command has led to.
type swapped struct {
	revision int64
	conflict bool
	before   failover.Mark // before the entry, if that has a mark
	err      error
}

// fsm applies the voters' log. It is deterministic: the same entries give the same state on each of them.
type fsm struct {
	now *latest.Value[state]
	// recovering makes the next snapshot one of a cluster that was recovered by force.
	recovering bool
}

var _ hraft.FSM = (*fsm)(nil)

func newFSM() *fsm { return &fsm{now: latest.New(state{})} }

// Apply implements raft.FSM. It gives a swapped.
func (f *fsm) Apply(entry *hraft.Log) any {
	var c command
	if err := json.Unmarshal(entry.Data, &c); err != nil {
		return swapped{err: fmt.Errorf("log entry %d cannot be read: %w", entry.Index, err)}
	}
	switch {
	case len(c.Record) == 0 && c.Mark != nil:
		return swapped{before: f.raise(*c.Mark)}
	case len(c.Record) == 0:
		return swapped{err: fmt.Errorf("log entry %d is neither a swap nor a mark", entry.Index)}
	}
	var out swapped
	f.now.Update(func(s *state) bool {
		switch {
		case s.at() == c.Expect:
			s.Revision++
			s.OpID, s.Record = c.OpID, c.Record
			out.revision = s.Revision
			return true
		case s.Record != nil && s.OpID == c.OpID:
			out.revision = s.Revision // the same swap, sent again by one who got no answer
		default:
			out.conflict = true
		}
		return false
	})
	return out
}

// raise notes a mark, unless it is below the one that is there, which it returns.
func (f *fsm) raise(m failover.Mark) (before failover.Mark) {
	f.now.Update(func(s *state) bool {
		before = s.mark()
		if s.Mark == nil || s.Mark.Less(m) {
			s.Mark = &m
		}
		return false // a mark is nothing that watchers look at
	})
	return before
}

// Snapshot implements raft.FSM.
func (f *fsm) Snapshot() (hraft.FSMSnapshot, error) {
	s := f.now.Get()
	if f.recovering {
		s.Recoveries++
		// What the lost voters have written without this one may bear the next revisions; none of them may be taken for
		// ours.
		s.Revision += 1 << 32
	}
	return snapshot(s), nil
}

// Restore implements raft.FSM.
func (f *fsm) Restore(from io.ReadCloser) error {
	defer from.Close()
	raw, err := io.ReadAll(io.LimitReader(from, maxStateBytes+1))
	if err != nil {
		return fmt.Errorf("read the snapshot of the pair's record: %w", err)
	}
	if len(raw) > maxStateBytes {
		return errors.New("the snapshot of the pair's record is too large to be one")
	}
	var s state
	if err := json.Unmarshal(raw, &s); err != nil {
		return fmt.Errorf("the snapshot of the pair's record cannot be read: %w", err)
	}
	f.now.Update(func(now *state) bool { *now = s; return true })
	return nil
}

// snapshot of a state, which is small and never changed in place.
type snapshot state

// Persist implements raft.FSMSnapshot.
func (s snapshot) Persist(sink hraft.SnapshotSink) error {
	raw, err := json.Marshal(state(s))
	if err == nil {
		_, err = sink.Write(raw)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("write the snapshot of the pair's record: %w", err), sink.Cancel())
	}
	return sink.Close() //nolint:wrapcheck // the sink names the file
}

// Release implements raft.FSMSnapshot.
func (s snapshot) Release() {}
