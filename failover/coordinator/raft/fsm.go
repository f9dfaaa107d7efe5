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

const maxStateBytes = 1 << 20 // usually a few KiB

// state is the complete replicated state. It excludes liveness.
type state struct {
	Revision   int64           `json:"revision"`
	OpID       string          `json:"op_id,omitempty"`
	Record     json.RawMessage `json:"record,omitempty"`
	Recoveries uint64          `json:"recoveries"`
	// Mark is the pair's high-water mark; nil until the first mark is written, which requires that all voters support
	// marks.
	Mark *failover.Mark `json:"mark,omitempty"`
}

func (s state) mark() failover.Mark {
	if s.Mark == nil {
		return failover.Mark{}
	}
	return *s.Mark
}

// at returns the revision that a swap must expect.
func (s state) at() int64 {
	if s.Record == nil {
		return 0
	}
	return s.Revision
}

// command is a log entry: a compare-and-swap of the record or, without Record, a write of the mark. A voter of 0.1.0
// would ignore an entry without a record; Voter.mark ensures that it never receives one.
type command struct {
	Expect int64           `json:"expect"`
	OpID   string          `json:"op_id"`
	Record json.RawMessage `json:"record,omitempty"`
	Mark   *failover.Mark  `json:"mark,omitempty"`
}

type swapped struct {
	revision int64
	conflict bool
	before   failover.Mark // previous mark, if the entry writes a mark
	err      error
}

type fsm struct {
	now *latest.Value[state]
	// recovering is set for the snapshot of a forced recovery.
	recovering bool
}

var _ hraft.FSM = (*fsm)(nil)

func newFSM() *fsm { return &fsm{now: latest.New(state{})} }

// Apply implements hraft.FSM. The result has the type swapped.
func (f *fsm) Apply(entry *hraft.Log) any {
	var c command
	if err := json.Unmarshal(entry.Data, &c); err != nil {
		return swapped{err: fmt.Errorf("read log entry %d: %w", entry.Index, err)}
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
			out.revision = s.Revision // a retry of the same swap
		default:
			out.conflict = true
		}
		return false
	})
	return out
}

// raise sets the mark if it is higher than the current one, and returns the previous mark.
func (f *fsm) raise(m failover.Mark) (before failover.Mark) {
	f.now.Update(func(s *state) bool {
		before = s.mark()
		if s.Mark == nil || s.Mark.Less(m) {
			s.Mark = &m
		}
		return false // watchers do not use the mark
	})
	return before
}

func (f *fsm) Snapshot() (hraft.FSMSnapshot, error) {
	s := f.now.Get()
	if f.recovering {
		s.Recoveries++
		// The lost voters may have committed the next revisions, which must not be assigned to other records.
		s.Revision += 1 << 32
	}
	return snapshot(s), nil
}

func (f *fsm) Restore(from io.ReadCloser) error {
	defer from.Close()
	raw, err := io.ReadAll(io.LimitReader(from, maxStateBytes+1))
	if err != nil {
		return fmt.Errorf("read cluster record snapshot: %w", err)
	}
	if len(raw) > maxStateBytes {
		return errors.New("cluster record snapshot is too large")
	}
	var s state
	if err := json.Unmarshal(raw, &s); err != nil {
		return fmt.Errorf("decode cluster record snapshot: %w", err)
	}
	f.now.Update(func(now *state) bool { *now = s; return true })
	return nil
}

type snapshot state

func (s snapshot) Persist(sink hraft.SnapshotSink) error {
	raw, err := json.Marshal(state(s))
	if err == nil {
		_, err = sink.Write(raw)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("write cluster record snapshot: %w", err), sink.Cancel())
	}
	return sink.Close() //nolint:wrapcheck // the sink names the file
}

func (s snapshot) Release() {}
