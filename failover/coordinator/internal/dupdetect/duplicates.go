// SPDX-License-Identifier: Apache-2.0

// Package dupdetect detects other processes announced under this node's ID.
package dupdetect

import (
	"cmp"
	"slices"

	"github.com/lockstep-mq/lockstep/failover"
)

// Entry is the announcement of one process with an unexpired lease.
type Entry struct {
	Live failover.Live `json:"live"`
	// Seq is assigned by the source of the entries, such as etcd. It increases with each announcement of any process.
	Seq int64 `json:"seq"`
	// First is the Seq of the process's first announcement; 0 if the source only has the latest one.
	First int64 `json:"first,omitempty"`
}

// Tracker finds duplicate processes among announcements. The zero Tracker belongs to a process that is not announced.
// It is not safe for concurrent use.
type Tracker struct {
	own    failover.Live
	on     bool
	epoch  uint64
	first  int64           // Seq of this process's first known announcement in the epoch; 0 if none
	proven map[string]bool // present processes that announced themselves after first
	known  map[string]bool // processes reported by Unknown
}

// Begin sets the announcement of this process.
func (t *Tracker) Begin(own failover.Live) {
	*t = Tracker{own: own, on: true, proven: make(map[string]bool), known: make(map[string]bool)}
}

// End records that this process is no longer announced.
func (t *Tracker) End() { *t = Tracker{} }

func (t *Tracker) other(e Entry) bool {
	return t.on && e.Live.Node.ID == t.own.Node.ID && e.Live.Process != t.own.Process
}

// Any reports whether the announcements contain another process under this node's ID.
func (t *Tracker) Any(all []Entry) bool { return slices.ContainsFunc(all, t.other) }

// See returns another process under this node's ID among all current announcements, preferably one that is known to be
// running; nil if none. epoch identifies the source of the sequence numbers.
func (t *Tracker) See(epoch uint64, all []Entry) *failover.Duplicate {
	if !t.on {
		return nil
	}
	if t.epoch != epoch {
		t.epoch, t.first = epoch, 0
	}
	there := make(map[string]bool)
	var duplicates []failover.Duplicate
	for _, e := range all {
		if t.first == 0 && e.Live.Node.ID == t.own.Node.ID && e.Live.Process == t.own.Process {
			t.first = cmp.Or(e.First, e.Seq)
		}
	}
	for _, e := range all {
		if !t.other(e) {
			continue
		}
		there[e.Live.Process] = true
		if t.first != 0 && e.Seq > t.first {
			t.proven[e.Live.Process] = true
		}
		duplicates = append(duplicates, failover.Duplicate{Live: e.Live, Stale: !t.proven[e.Live.Process]})
	}
	for p := range t.proven {
		if !there[p] {
			delete(t.proven, p)
		}
	}
	for p := range t.known {
		if !there[p] {
			delete(t.known, p)
		}
	}
	if len(duplicates) == 0 {
		return nil
	}
	// A process known to be running takes precedence. The choice is stable.
	duplicate := slices.MinFunc(duplicates, func(a, b failover.Duplicate) int {
		if a.Stale != b.Stale {
			return map[bool]int{false: -1, true: 1}[a.Stale]
		}
		return cmp.Compare(a.Process, b.Process)
	})
	return &duplicate
}

// Unknown reports whether the announcements contain another process under this node's ID that no earlier call has
// reported. Such a process may not have detected this process.
func (t *Tracker) Unknown(all []Entry) bool {
	news := false
	for _, e := range all {
		if t.other(e) && !t.known[e.Live.Process] {
			t.known[e.Live.Process], news = true, true
		}
	}
	return news
}
