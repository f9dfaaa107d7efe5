// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
)

// Owner is the owner of a queue.
type Owner struct {
	Pair string
	// Addresses are the addresses of the nodes of the pair, host:port. The slice must not be modified.
	Addresses []string
	// Epoch is the ownership epoch. Of two results for the same queue, the one with the higher epoch is newer.
	Epoch uint64
}

// Placement is a queue in the directory.
type Placement struct {
	Queue, Pair, Group string
	Epoch              uint64
}

// PairStatus is a registered pair.
type PairStatus struct {
	Member
	Load Load
	// Live reports whether the directory contains the load of the pair.
	Live bool
	// Queues is the number of queues that the directory assigns to the pair.
	Queues int
}

// Status is the state of the copy.
type Status struct {
	// Loaded reports whether there is a copy, and Current whether it receives changes.
	Loaded, Current bool
	FleetID         string
	// Counter is the last assigned ownership epoch.
	Counter uint64
	// Problem is the reason why no queues can be assigned, or nil.
	Problem error
	Queues  int
	// Malformed are the malformed values in etcd, each a *ValueError, sorted by key; at most 100.
	Malformed []error
}

// contents is a copy of the directory.
type contents struct {
	prefix string
	head   head
	// restored is set if the directory was older than a known epoch when it was loaded. A change of the key fleet
	// resets it.
	restored bool
	pairs    map[string]Member
	loads    map[string]Load
	rules    map[string]Rule
	queues   map[string]entry
	counts   map[string]int // number of queues by pair
	// partitioned contains the number of partitions in the directory, by the name of the partitioned queue and the
	// number of partitions in their names.
	partitioned map[string]map[int]int
	names       map[string]string
	moves       map[uint64]Move
	// forgotten are the pairs that Forget has removed, by ID.
	forgotten map[string]forgottenValue
	invalid   map[string]error // malformed values, by key
	// changes counts the additions and removals of queues. sorted contains the sorted names of all queues, or nil after
	// such a change. sortedNames stores it under the read lock.
	changes uint64
	sorted  atomic.Pointer[[]string]
}

type entry struct {
	pair, group string
	epoch       uint64
}

func newContents(prefix string) *contents {
	return &contents{
		prefix: prefix, pairs: map[string]Member{}, loads: map[string]Load{}, rules: map[string]Rule{},
		queues: map[string]entry{}, counts: map[string]int{}, names: map[string]string{}, invalid: map[string]error{},
		moves: map[uint64]Move{}, forgotten: map[string]forgottenValue{}, partitioned: map[string]map[int]int{},
	}
}

// intern returns one copy of equal strings, because many queues have the same pair and group.
func (c *contents) intern(s string) string {
	if s == "" {
		return ""
	}
	if same, ok := c.names[s]; ok {
		return same
	}
	c.names[s] = s
	return s
}

// put applies a written key. It records a malformed value in c.invalid.
func (c *contents) put(key string, raw []byte) {
	kind, name := c.split(key)
	delete(c.invalid, key)
	var err error
	switch kind {
	case keyFleet:
		c.head.raw, c.restored = string(raw), false
		c.head.fleet, err = decodeFleet(raw)
	case keyCounter:
		c.head.rawCtr = string(raw)
		c.head.counter, err = decodeCounter(raw)
	case dirPairs:
		var m Member
		m, err = decodeMember(name, raw)
		replace(c.pairs, name, m, err)
	case dirLoad:
		var l Load
		l, err = decodeLoad(raw)
		replace(c.loads, name, l, err)
	case dirRules:
		var r Rule
		r, err = decodeRule(name, raw)
		replace(c.rules, name, r, err)
	case dirQueues:
		var v entryValue
		v, err = decodeEntry(raw)
		if err != nil {
			c.removeQueue(name)
			break
		}
		c.putQueue(name, v)
	case dirForgotten:
		var v forgottenValue
		v, err = decodeForgotten(raw)
		replace(c.forgotten, name, v, err)
	case dirMoves:
		var m Move
		m, err = decodeMove(name, raw)
		replace(c.moves, m.Epoch, m, err)
	}
	if err != nil {
		c.invalid[key] = &ValueError{key, err}
	}
}

func replace[K comparable, V any](all map[K]V, name K, v V, err error) {
	if err != nil {
		delete(all, name)
		return
	}
	all[name] = v
}

func (c *contents) putQueue(name string, v entryValue) {
	if old, ok := c.queues[name]; ok {
		c.uncount(old)
	} else {
		c.renamed()
		c.countPartition(name, 1)
	}
	c.queues[name] = entry{pair: c.intern(v.Pair), group: c.intern(v.Group), epoch: v.Epoch}
	c.counts[v.Pair]++
}

func (c *contents) renamed() {
	c.changes++
	c.sorted.Store(nil)
}

func (c *contents) uncount(e entry) {
	if c.counts[e.pair]--; c.counts[e.pair] == 0 {
		delete(c.counts, e.pair)
	}
}

func (c *contents) removeQueue(name string) {
	if e, ok := c.queues[name]; ok {
		delete(c.queues, name)
		c.renamed()
		c.uncount(e)
		c.countPartition(name, -1)
	}
}

// remove applies a deleted key.
func (c *contents) remove(key string) {
	kind, name := c.split(key)
	delete(c.invalid, key)
	switch kind {
	case keyFleet:
		c.head.raw, c.head.fleet = "", fleetValue{}
	case keyCounter:
		c.head.rawCtr, c.head.counter = "", 0
	case dirPairs:
		delete(c.pairs, name)
	case dirLoad:
		delete(c.loads, name)
	case dirRules:
		delete(c.rules, name)
	case dirQueues:
		c.removeQueue(name)
	case dirForgotten:
		delete(c.forgotten, name)
	case dirMoves:
		if epoch, err := strconv.ParseUint(name, 10, 64); err == nil {
			delete(c.moves, epoch)
		}
	}
}

// split returns the kind and the name of a key.
func (c *contents) split(key string) (kind, name string) {
	rest := strings.TrimPrefix(key, c.prefix)
	if i := strings.IndexByte(rest, '/'); i >= 0 {
		return rest[:i+1], rest[i+1:]
	}
	return rest, ""
}

// Owner returns the owner of a queue from the copy, and whether the queue is assigned. For an entry in the copy, the
// error is nil even if etcd does not respond. If no entry is found, but the queue may be assigned nevertheless, the
// error wraps ErrUnavailable, ErrNotMember, ErrForgotten, ErrLost, ErrRestored or ErrRebuilding, or is a *ValueError.
func (d *Directory) Owner(queue string) (Owner, bool, error) {
	d.mu.RLock()
	defer d.mu.RUnlock()
	if d.copy == nil {
		return Owner{}, false, fmt.Errorf("%w: not loaded", ErrUnavailable)
	}
	if e, ok := d.copy.queues[queue]; ok {
		return Owner{Pair: e.pair, Addresses: d.copy.pairs[e.pair].Addresses, Epoch: e.epoch}, true, nil
	}
	if !d.current {
		return Owner{}, false, fmt.Errorf("%w: the copy is not current", ErrUnavailable)
	}
	if len(d.copy.invalid) > 0 {
		if err, ok := d.copy.invalid[d.key(dirQueues, queue)]; ok {
			return Owner{}, false, err
		}
	}
	return Owner{}, false, d.problemLocked()
}

// problemLocked returns the reason why the copy must not be used for assignments, or nil. mu is held.
func (d *Directory) problemLocked() error {
	for _, key := range []string{keyFleet, keyCounter} {
		if err, ok := d.copy.invalid[d.prefix+key]; ok {
			return err
		}
	}
	if d.copy.restored {
		return ErrRestored
	}
	// The copy may be older than the last epoch in the log.
	return problem(d.copy.head, known{
		PairState: PairState{FleetID: d.opts.State().FleetID}, forgotten: d.forgottenLocked(),
	})
}

// Status returns the state of the copy.
func (d *Directory) Status() Status {
	d.mu.RLock()
	defer d.mu.RUnlock()
	if d.copy == nil {
		return Status{Problem: ErrUnavailable}
	}
	s := Status{
		Loaded: true, Current: d.current, FleetID: d.copy.head.fleet.ID, Counter: d.copy.head.counter,
		Queues: len(d.copy.queues), Problem: d.problemLocked(),
	}
	if !d.current {
		s.Problem = ErrUnavailable
	}
	keys := slices.Sorted(maps.Keys(d.copy.invalid))
	for _, key := range keys[:min(len(keys), 100)] {
		s.Malformed = append(s.Malformed, d.copy.invalid[key])
	}
	return s
}

// Pairs returns the registered pairs from the copy, sorted by name. Their slices and maps must not be modified.
func (d *Directory) Pairs() []PairStatus {
	d.mu.RLock()
	defer d.mu.RUnlock()
	if d.copy == nil {
		return nil
	}
	var out []PairStatus
	for _, name := range slices.Sorted(maps.Keys(d.copy.pairs)) {
		l, live := d.copy.loads[name]
		out = append(out, PairStatus{Member: d.copy.pairs[name], Load: l, Live: live, Queues: d.copy.counts[name]})
	}
	return out
}

// Queues returns at most n queues with a name greater than after, sorted by name, from the copy. The first call after
// a queue was added or removed sorts all names, without blocking other methods.
func (d *Directory) Queues(after string, n int) []Placement {
	names := d.sortedNames()
	first, found := slices.BinarySearch(names, after)
	if found {
		first++
	}
	d.mu.RLock()
	defer d.mu.RUnlock()
	if d.copy == nil || n <= 0 {
		return nil
	}
	out := make([]Placement, 0, min(n, len(names)-first))
	for _, name := range names[first:] {
		if len(out) == n {
			break
		}
		if p, found := d.placementLocked(name); found {
			out = append(out, p)
		}
	}
	return out
}

// sortedNames returns the names of all queues in order.
func (d *Directory) sortedNames() []string {
	d.mu.RLock()
	c := d.copy
	if c == nil {
		d.mu.RUnlock()
		return nil
	}
	if sorted := c.sorted.Load(); sorted != nil {
		d.mu.RUnlock()
		return *sorted
	}
	names, changes := slices.Collect(maps.Keys(c.queues)), c.changes
	d.mu.RUnlock()
	slices.Sort(names)
	d.mu.RLock()
	defer d.mu.RUnlock()
	if c.changes == changes {
		c.sorted.Store(&names)
	}
	return names
}

// Placement returns the entry of a queue from the copy.
func (d *Directory) Placement(queue string) (p Placement, found bool) {
	d.mu.RLock()
	defer d.mu.RUnlock()
	if d.copy == nil {
		return p, false
	}
	return d.placementLocked(queue)
}

func (d *Directory) placementLocked(name string) (p Placement, found bool) {
	e, found := d.copy.queues[name]
	return Placement{Queue: name, Pair: e.pair, Group: e.group, Epoch: e.epoch}, found
}

// Rules returns the placement rules from the copy, sorted by pattern. Their maps must not be modified.
func (d *Directory) Rules() []Rule {
	d.mu.RLock()
	defer d.mu.RUnlock()
	if d.copy == nil {
		return nil
	}
	var out []Rule
	for _, pattern := range slices.Sorted(maps.Keys(d.copy.rules)) {
		out = append(out, d.copy.rules[pattern])
	}
	return out
}

// Changed returns a channel that is closed after the next change of the copy, or of the connection of its watch.
func (d *Directory) Changed() <-chan struct{} {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return d.changed
}

// Await blocks until fulfilled returns true for the status of the copy, or returns the error of ctx when ctx ends.
func (d *Directory) Await(ctx context.Context, fulfilled func(Status) bool) error {
	for {
		changed := d.Changed()
		if fulfilled(d.Status()) {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// update calls f under the lock, and closes the channel returned by Changed.
func (d *Directory) update(f func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	f()
	close(d.changed)
	d.changed = make(chan struct{})
}
