// SPDX-License-Identifier: Apache-2.0

// Package twins finds other processes that announce themselves under this node's id.
package twins

import (
	"cmp"
	"slices"

	"github.com/lockstep-mq/lockstep/failover"
)

// Entry is one process's announcement, whose lease has not ended as far as is known.
type Entry struct {
	Live failover.Live `json:"live"`
	// Seq grows with each announcement that the same source has heard, of whatever process.
	Seq int64 `json:"seq"`
	// First is the Seq of the first announcement of the process; 0: the source tells only the latest, and repeats it.
	First int64 `json:"first,omitempty"`
}

// Tracker tells which of the announcements are a twin's. The zero Tracker is one of a process that has not announced
// itself. It has no lock of its own.
type Tracker struct {
	own    failover.Live
	on     bool
	epoch  uint64
	first  int64           // Seq of this process's first announcement in the epoch, as far as it was seen; 0: none was
	proven map[string]bool // processes that announced themselves after that, as long as they are seen
	known  map[string]bool // processes that Strangers has told of
}

// Begin notes who this process is.
func (t *Tracker) Begin(own failover.Live) {
	*t = Tracker{own: own, on: true, proven: make(map[string]bool), known: make(map[string]bool)}
}

// End forgets it: the process does not announce itself any more.
func (t *Tracker) End() { *t = Tracker{} }

// other tells whether an entry is that of another process under this node's id.
func (t *Tracker) other(e Entry) bool {
	return t.on && e.Live.Node.ID == t.own.Node.ID && e.Live.Process != t.own.Process
}

// Any tells whether there is another process among the announcements.
func (t *Tracker) Any(all []Entry) bool { return slices.ContainsFunc(all, t.other) }

// See returns the twin among all announcements that are known now; nil if there is none. An epoch is one source of
// sequence numbers.
func (t *Tracker) See(epoch uint64, all []Entry) *failover.Twin {
	if !t.on {
		return nil
	}
	if t.epoch != epoch {
		t.epoch, t.first = epoch, 0
	}
	there := make(map[string]bool)
	var twins []failover.Twin
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
		twins = append(twins, failover.Twin{Live: e.Live, Stale: !t.proven[e.Live.Process]})
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
	if len(twins) == 0 {
		return nil
	}
	// One that runs is what matters; and of several always the same.
	twin := slices.MinFunc(twins, func(a, b failover.Twin) int {
		if a.Stale != b.Stale {
			return map[bool]int{false: -1, true: 1}[a.Stale]
		}
		return cmp.Compare(a.Process, b.Process)
	})
	return &twin
}

// Unknown tells whether there are other processes that it has not told of yet: those do not know of this one for
// sure.
func (t *Tracker) Unknown(all []Entry) bool {
	news := false
	for _, e := range all {
		if t.other(e) && !t.known[e.Live.Process] {
			t.known[e.Live.Process], news = true, true
		}
	}
	return news
}
