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
	boltdb "github.com/hashicorp/raft-boltdb/v2"
)

// A voter's promises are worth something only as long as its disk keeps them, and a disk can be put back: the snapshot
// of a virtual machine holds the voter's vote and log, too. A voter that has forgotten a vote can give it a second time
// in the same term, and two would lead in it; one that has forgotten entries can elect a leader that lacks what the
// others hold to be committed.
//
// A voter cannot know that by itself, so that the others remember for it. Each keeps, on its own disk, the highest that
// it has heard of every other: what that one has promised by raft's own messages. A vote is on the disk before raft
// counts it. An acknowledged entry is there a moment later: waiting for it would double the time of each swap, and what
// it leaves open is that this voter dies in that moment and the other one is put back as well. A voter that connects
// says what it knows of the other side, and a voter that has just started hears the others out before it takes part.
// One that finds itself below what is known of it takes no part any more, and says so; it is replaced like one whose
// disk was lost.
//
// None of what is compared ever falls on a disk that was not put back: the term of a voter's last vote only rises, and
// within the term in which an entry was acknowledged no voter cuts it. (The end of the log alone would not do: a new
// leader may cut it. Neither would the term: to have been in it is no promise, and the library lets it fall by one when
// a heartbeat, which it handles beside everything else, arrives just as the voter stands for an election.)

const (
	// soon is when what was acknowledged is written to the disk: two followers' acknowledgements are one write.
	soon = 50 * time.Millisecond
	// gossipEvery is how often what was only told by others, or promises nothing, is written to the disk at most.
	gossipEvery = 5 * time.Second
)

// urgency of what is to be written.
type urgency uint8

const (
	lazily  urgency = iota // within gossipEvery
	shortly                // soon
	atOnce                 // on return
)

// Keys beside raft's own, in the same file.
const (
	sightingsKey = "lockstep-sightings"
	putBackKey   = "lockstep-put-back"
)

// sighting is the highest that is known of what a voter has promised.
type sighting struct {
	// Term that it was in.
	Term uint64 `json:"term,omitempty"`
	// Voted is the term of a vote that it has given.
	Voted uint64 `json:"voted,omitempty"`
	// Acked is the last entry that it was known to have in AckTerm: as a follower to that term's leader, or as that
	// leader.
	AckTerm uint64 `json:"ack_term,omitempty"`
	Acked   uint64 `json:"acked,omitempty"`
}

// with is the higher of both, in each respect.
func (s sighting) with(o sighting) sighting {
	s.Term, s.Voted = max(s.Term, o.Term), max(s.Voted, o.Voted)
	if o.AckTerm > s.AckTerm || o.AckTerm == s.AckTerm && o.Acked > s.Acked {
		s.AckTerm, s.Acked = o.AckTerm, o.Acked
	}
	return s
}

// diskState is what a voter has on its disk.
type diskState struct {
	Term  uint64 `json:"term"`
	Voted uint64 `json:"voted"`
	Last  uint64 `json:"last"`
}

// lacks tells what a voter with this on its disk has forgotten; empty if nothing.
func (s sighting) lacks(have diskState) string {
	switch {
	case s.Voted > have.Voted:
		return fmt.Sprintf("it has voted in term %d, and its disk says %d", s.Voted, have.Voted)
	case s.AckTerm > have.Term:
		return fmt.Sprintf("it had entries of term %d, and its disk is in term %d", s.AckTerm, have.Term)
	case s.AckTerm == have.Term && s.Acked > have.Last:
		return fmt.Sprintf("it had the log up to %d, and its disk ends at %d", s.Acked, have.Last)
	default:
		return ""
	}
}

// state of this voter by its disk.
func (d *disk) state() (diskState, error) { return reading(d, d.readState) }

func (d *disk) readState() (diskState, error) {
	var s diskState
	for key, to := range map[string]*uint64{"CurrentTerm": &s.Term, "LastVoteTerm": &s.Voted} { // raft's names
		n, err := d.store.GetUint64([]byte(key))
		if err != nil && !errors.Is(err, boltdb.ErrKeyNotFound) {
			return diskState{}, fmt.Errorf("raft: read %s in %s: %w", key, d.dir, err)
		}
		*to = n
	}
	var err error
	s.Last, err = d.lastIndex()
	return s, err
}

// lastEntry of the log; zero if there is none, or if it is cut just now.
func (d *disk) lastEntry() (entry hraft.Log, err error) {
	last, err := d.store.LastIndex()
	if err != nil {
		return hraft.Log{}, fmt.Errorf("raft: the log in %s: %w", d.dir, err)
	}
	if last > 0 {
		err = d.store.GetLog(last, &entry)
	}
	if err != nil && !errors.Is(err, hraft.ErrLogNotFound) {
		return hraft.Log{}, fmt.Errorf("raft: entry %d of the log in %s: %w", last, d.dir, err)
	}
	return entry, nil
}

// putBack gives why this voter takes no part any more, as it was noted before a restart; empty if it does.
func (d *disk) putBack() (string, error) {
	why, err := d.store.Get([]byte(putBackKey))
	if err != nil && !errors.Is(err, boltdb.ErrKeyNotFound) {
		return "", fmt.Errorf("raft: read %s in %s: %w", putBackKey, d.dir, err)
	}
	return string(why), nil
}

// notePutBack keeps that for the next start, when those who know better may not be there.
func (d *disk) notePutBack(why string) error {
	if err := d.store.Set([]byte(putBackKey), []byte(why)); err != nil {
		return fmt.Errorf("raft: write %s to %s: %w", putBackKey, d.dir, err)
	}
	return nil
}

// kept is what is on the disk.
type kept struct {
	// Seen are the other voters, by id.
	Seen map[string]sighting `json:"seen"`
	// LedBy is the leader of LedTerm, the newest one that has sent entries: it has at least what this voter has of that
	// term.
	LedTerm uint64 `json:"led_term"`
	LedBy   string `json:"led_by"`
}

// sightings is what this voter knows of the others.
type sightings struct {
	disk *disk
	due  chan struct{} // one slot: something is to be written soon

	writing sync.Mutex // held while the disk writes; taken before mu

	mu      sync.Mutex // guards what follows; never held while the disk is waited for: others ask what is known here
	known   kept
	changes uint64    // of known
	stored  uint64    // those of them that the disk has
	ledTerm uint64    // known.LedTerm that the disk has
	written time.Time // when the disk was last written
}

// openSightings reads what the disk has kept.
func openSightings(d *disk) (*sightings, error) {
	s := &sightings{disk: d, due: make(chan struct{}, 1), known: kept{Seen: make(map[string]sighting)}}
	raw, err := d.store.Get([]byte(sightingsKey))
	if errors.Is(err, boltdb.ErrKeyNotFound) {
		return s, nil
	}
	if err == nil {
		err = json.Unmarshal(raw, &s.known)
	}
	if err != nil {
		return nil, fmt.Errorf("raft: read %s in %s: %w: if it is damaged, move the directory away and replace this "+
			"voter (lockstep pair replace)",
			sightingsKey, d.dir, err)
	}
	if s.known.Seen == nil {
		s.known.Seen = make(map[string]sighting)
	}
	s.ledTerm = s.known.LedTerm
	return s, nil
}

// saw notes what was learned of a voter.
func (s *sightings) saw(id string, what sighting, when urgency) error {
	if id == "" || id == s.disk.id {
		return nil
	}
	switch lacks := s.note(id, what); {
	case !lacks:
	case when == atOnce:
		return s.sync()
	case when == shortly:
		select {
		case s.due <- struct{}{}:
		default:
		}
	}
	return nil
}

// note keeps what was learned in memory, and tells whether the disk lacks something.
func (s *sightings) note(id string, what sighting) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if next := s.known.Seen[id].with(what); next != s.known.Seen[id] {
		s.known.Seen[id] = next
		s.changes++
	}
	return s.changes != s.stored
}

// run writes what is to be written soon, until ctx ends.
func (s *sightings) run(ctx context.Context, failed func(error)) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.due:
		}
		select {
		case <-ctx.Done(): // Voter.Close writes it
			return
		case <-time.After(soon):
		}
		if err := s.sync(); err != nil {
			failed(err)
		}
	}
}

// sync writes what is not on the disk yet. When it returns nil, the disk has all that was noted before the call.
func (s *sightings) sync() error {
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
		err = s.disk.store.Set([]byte(sightingsKey), raw)
	}
	if err != nil {
		return fmt.Errorf("raft: write %s to %s: %w", sightingsKey, s.disk.dir, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stored, s.ledTerm, s.written = changes, ledTerm, time.Now()
	return nil
}

// led notes, durably, who leads in a term and is about to have this voter write entries.
func (s *sightings) led(term uint64, id string) error {
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

// flush writes what was only heard, now and then, and forgets those who are members no more.
func (s *sightings) flush(members []hraft.Server) error {
	s.mu.Lock()
	if s.changes == s.stored || time.Since(s.written) < gossipEvery {
		s.mu.Unlock()
		return nil
	}
	if len(members) > 0 {
		maps.DeleteFunc(s.known.Seen, func(id string, _ sighting) bool {
			return !slices.ContainsFunc(members, func(m hraft.Server) bool { return string(m.ID) == id })
		})
		s.changes++
	}
	s.mu.Unlock()
	return s.sync()
}

// all is what is known of every voter.
func (s *sightings) all() (map[string]sighting, error) {
	s.mu.Lock()
	all := kept{Seen: maps.Clone(s.known.Seen), LedTerm: s.known.LedTerm, LedBy: s.known.LedBy}
	s.mu.Unlock()
	if all.LedBy == "" || all.LedBy == s.disk.id {
		return all.Seen, nil
	}
	// The leader of a term has everything of that term that this voter has.
	entry, err := reading(s.disk, s.disk.lastEntry)
	if err != nil {
		return nil, err
	}
	leader := sighting{Term: all.LedTerm, Voted: all.LedTerm}
	if entry.Term == all.LedTerm {
		leader.AckTerm, leader.Acked = entry.Term, entry.Index
	}
	all.Seen[all.LedBy] = all.Seen[all.LedBy].with(leader)
	return all.Seen, nil
}

// of is what is known of one.
func (s *sightings) of(id string) (sighting, error) {
	all, err := s.all()
	return all[id], err
}
