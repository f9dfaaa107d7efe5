// SPDX-License-Identifier: Apache-2.0

package raft

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	hraft "github.com/hashicorp/raft"
)

// Raft requires that a voter's disk never loses a vote or an acknowledged entry. But a disk can be restored to an
// older state, for example with a snapshot of a virtual machine. A voter that lost a vote could vote again in the
// same term, which could elect two leaders. A voter that lost entries could vote for a leader that lacks committed
// entries.
//
// A voter cannot detect this alone. Each voter therefore persists the highest known progress of every other voter,
// as contained in raft's messages. A vote is persisted before raft counts it. An acknowledged entry is persisted
// shortly after, because waiting would double the time of each swap. This is unsafe only if a voter crashes in this
// interval and the disk of the other voter is restored as well. A voter that opens a connection sends the known
// progress of the accepting voter, and a starting voter collects the other voters' hellos before it participates. A
// voter with a disk below its known progress is fenced, and must be replaced like a voter with a lost disk.
//
// None of the compared values ever decreases on a disk that was not restored: the term of a voter's last vote only
// increases, and no voter truncates an entry within the term in which it was acknowledged. The end of the log is not
// comparable, because a new leader may truncate it. The library's current term alone is not comparable either (see
// diskState).

const (
	// flushDelay is the delay of writes for acknowledged entries.
	flushDelay = 50 * time.Millisecond
	// flushInterval is the interval of writes for progress that was reported by other voters, or is not compared.
	flushInterval = 5 * time.Second
)

type urgency uint8

const (
	urgencyLow       urgency = iota // within flushInterval
	urgencyNormal                   // within flushDelay
	urgencyImmediate                // before record returns
)

const (
	progressKey = "lockstep-sightings"
	rollbackKey = "lockstep-put-back"
)

type peerProgress struct {
	Term uint64 `json:"term,omitempty"`
	// Voted is the term of the voter's last known vote.
	Voted uint64 `json:"voted,omitempty"`
	// Acked is the last entry that the voter is known to have had in AckTerm, as the leader or a follower.
	AckTerm uint64 `json:"ack_term,omitempty"`
	Acked   uint64 `json:"acked,omitempty"`
}

// with returns the higher values of s and o. AckTerm and Acked are compared together.
func (s peerProgress) with(o peerProgress) peerProgress {
	s.Term, s.Voted = max(s.Term, o.Term), max(s.Voted, o.Voted)
	if o.AckTerm > s.AckTerm || o.AckTerm == s.AckTerm && o.Acked > s.Acked {
		s.AckTerm, s.Acked = o.AckTerm, o.Acked
	}
	return s
}

type diskState struct {
	// Term is the newest term in which the voter had a leader, voted or was a candidate. It can be higher than the
	// library's current term: a heartbeat can lower the current term if this voter becomes a candidate at the same time.
	// In 0.1.0, late heartbeats of earlier leaders also lowered it.
	Term  uint64 `json:"term"`
	Voted uint64 `json:"voted"`
	Last  uint64 `json:"last"`
}

func (s peerProgress) missing(have diskState) string {
	switch {
	case s.Voted > have.Voted:
		return fmt.Sprintf("it voted in term %d, but its disk has term %d", s.Voted, have.Voted)
	case s.AckTerm > have.Term:
		return fmt.Sprintf("it had entries of term %d, but its disk is in term %d", s.AckTerm, have.Term)
	case s.AckTerm == have.Term && s.Acked > have.Last:
		return fmt.Sprintf("it had log entries up to %d, but its disk ends at %d", s.Acked, have.Last)
	default:
		return ""
	}
}

func (d *disk) state() (diskState, error) { return reading(d, d.readState) }

func (d *disk) readState() (diskState, error) {
	var s diskState
	for key, to := range map[string]*uint64{currentTermKey: &s.Term, voteTermKey: &s.Voted} {
		n, err := d.store.GetUint64([]byte(key))
		if err != nil && !errors.Is(err, errKeyNotFound) {
			return diskState{}, fmt.Errorf("raft: read %s in %s: %w", key, d.dir, err)
		}
		*to = n
	}
	known, err := d.progress()
	if err != nil {
		return diskState{}, err
	}
	s.Term = max(s.Term, s.Voted, known.LedTerm)
	s.Last, err = d.lastIndex()
	return s, err
}

// progress returns the persisted progress of the other voters.
func (d *disk) progress() (kept, error) {
	known := kept{Seen: make(map[string]peerProgress)}
	raw, err := d.store.Get([]byte(progressKey))
	if errors.Is(err, errKeyNotFound) {
		return known, nil
	}
	if err == nil {
		err = json.Unmarshal(raw, &known)
	}
	if err != nil {
		return kept{}, fmt.Errorf("raft: read %s in %s (if it is corrupt, move the directory away and replace this "+
			"voter: lockstep pair replace): %w", progressKey, d.dir, err)
	}
	if known.Seen == nil {
		known.Seen = make(map[string]peerProgress)
	}
	return known, nil
}

// lastEntry returns the last entry, or the zero entry if the log is empty, or if the last entry is being truncated.
func (d *disk) lastEntry() (entry hraft.Log, err error) {
	last, err := d.store.LastIndex()
	if err != nil {
		return hraft.Log{}, fmt.Errorf("raft: log in %s: %w", d.dir, err)
	}
	if last > 0 {
		err = d.store.GetLog(last, &entry)
	}
	if err != nil && !errors.Is(err, hraft.ErrLogNotFound) {
		return hraft.Log{}, fmt.Errorf("raft: entry %d of log in %s: %w", last, d.dir, err)
	}
	return entry, nil
}

func (d *disk) rollback() (string, error) {
	why, err := d.store.Get([]byte(rollbackKey))
	if err != nil && !errors.Is(err, errKeyNotFound) {
		return "", fmt.Errorf("raft: read %s in %s: %w", rollbackKey, d.dir, err)
	}
	return string(why), nil
}

// recordRollback persists the description of a detected rollback.
func (d *disk) recordRollback(why string) error {
	if err := d.store.Set([]byte(rollbackKey), []byte(why)); err != nil {
		return fmt.Errorf("raft: write %s to %s: %w", rollbackKey, d.dir, err)
	}
	return nil
}

type kept struct {
	Seen map[string]peerProgress `json:"seen"`
	// LedBy is the leader of LedTerm, the newest term in which a leader has sent entries. That leader has at least
	// this voter's entries of that term.
	LedTerm uint64 `json:"led_term"`
	LedBy   string `json:"led_by"`
}

// progressStore persists the known progress of the other voters.
type progressStore struct {
	disk *disk
	due  chan struct{} // one slot: a write is due

	writing sync.Mutex // held during disk writes; taken before mu

	mu      sync.Mutex // guards the fields below; never held during disk access, because other voters read them
	known   kept
	changes uint64    // number of changes to known
	stored  uint64    // number of changes on disk
	ledTerm uint64    // known.LedTerm on disk
	written time.Time // time of the last write
}

func openProgress(d *disk) (*progressStore, error) {
	known, err := d.progress()
	if err != nil {
		return nil, err
	}
	s := &progressStore{disk: d, due: make(chan struct{}, 1), known: known}
	s.ledTerm = s.known.LedTerm
	return s, nil
}

func (s *progressStore) record(id string, what peerProgress, when urgency) error {
	if id == "" || id == s.disk.id {
		return nil
	}
	switch outdated := s.note(id, what); {
	case !outdated:
	case when == urgencyImmediate:
		return s.sync()
	case when == urgencyNormal:
		select {
		case s.due <- struct{}{}:
		default:
		}
	}
	return nil
}

// note records progress in memory, and reports whether the disk is outdated.
func (s *progressStore) note(id string, what peerProgress) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if next := s.known.Seen[id].with(what); next != s.known.Seen[id] {
		s.known.Seen[id] = next
		s.changes++
	}
	return s.changes != s.stored
}

func (s *progressStore) run(ctx context.Context, failed func(error)) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.due:
		}
		select {
		case <-ctx.Done(): // Voter.Close writes the changes
			return
		case <-time.After(flushDelay):
		}
		if err := s.sync(); err != nil {
			failed(err)
		}
	}
}

// sync writes pending changes. If it returns nil, all changes made before the call are durable.
func (s *progressStore) sync() error {
	s.writing.Lock()
	defer s.writing.Unlock()
	s.mu.Lock()
	changes, ledTerm := s.changes, s.known.LedTerm
	if changes == s.stored {
		s.mu.Unlock()
		return nil
	}
	raw, err := json.Marshal(s.known)
	s.mu.Unlock()
	if err == nil {
		err = s.disk.store.Set([]byte(progressKey), raw)
	}
	if err != nil {
		return fmt.Errorf("raft: write %s to %s: %w", progressKey, s.disk.dir, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stored, s.ledTerm, s.written = changes, ledTerm, time.Now()
	return nil
}

// led durably records the leader of a term. It must be called before this voter writes entries from that leader.
func (s *progressStore) led(term uint64, id string) error {
	s.mu.Lock()
	durable := term <= s.ledTerm
	if term > s.known.LedTerm {
		s.known.LedTerm, s.known.LedBy = term, id
		s.changes++
	}
	s.mu.Unlock()
	if durable {
		return nil
	}
	return s.sync()
}

// flush writes pending changes, at most once per flushInterval, and deletes the progress of former members.
func (s *progressStore) flush(members []hraft.Server) error {
	s.mu.Lock()
	if s.changes == s.stored || time.Since(s.written) < flushInterval {
		s.mu.Unlock()
		return nil
	}
	if len(members) > 0 {
		maps.DeleteFunc(s.known.Seen, func(id string, _ peerProgress) bool {
			return !slices.ContainsFunc(members, func(m hraft.Server) bool { return string(m.ID) == id })
		})
		s.changes++
	}
	s.mu.Unlock()
	return s.sync()
}

func (s *progressStore) all() (map[string]peerProgress, error) {
	s.mu.Lock()
	all := kept{Seen: maps.Clone(s.known.Seen), LedTerm: s.known.LedTerm, LedBy: s.known.LedBy}
	s.mu.Unlock()
	if all.LedBy == "" || all.LedBy == s.disk.id {
		return all.Seen, nil
	}
	// The leader of a term has all entries that this voter has of that term.
	entry, err := reading(s.disk, s.disk.lastEntry)
	if err != nil {
		return nil, err
	}
	leader := peerProgress{Term: all.LedTerm, Voted: all.LedTerm}
	if entry.Term == all.LedTerm {
		leader.AckTerm, leader.Acked = entry.Term, entry.Index
	}
	all.Seen[all.LedBy] = all.Seen[all.LedBy].with(leader)
	return all.Seen, nil
}

func (s *progressStore) of(id string) (peerProgress, error) {
	all, err := s.all()
	return all[id], err
}
