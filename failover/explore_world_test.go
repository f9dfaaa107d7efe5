// SPDX-License-Identifier: Apache-2.0

package failover

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/lockstep-mq/lockstep/store/lsn"
)

// This file models the environment of Step: hosts with one process and one disk each, the stream between them, the
// coordinator, and their failures. explore_test.go explores the model. A node's identity (IDs, log and fence) is on the
// disk, because a directory may be duplicated or outdated; the address belongs to the host.

// entry is a log record: its term and a number. Number 0 is the term-start record.
type entry struct{ term, id uint8 }

// budget is the remaining number of each failure or request on a path.
type budget struct {
	crash, loss, mark, cut, unknown, loadFail, unreach, write, tick, switchover, drainFail int8
	// Operator actions: see explore_operator_test.go. blind: a lease expires while its node is running.
	pause, force, blind, lose, adopt int8
	// Disk actions: see explore_disks_test.go.
	image, seal, place, swap, empty, resume int8
}

type world struct {
	hosts     [3]whost // the third host has no disk at first
	rec       *Record
	rev       Revision
	inflight  []wswap // swaps for which the sender no longer waits
	committed []entry // the longest log prefix that was acknowledged or applied anywhere
	usedTerms [64]bool
	left      budget
	writes    uint8
	mark      Mark // in the coordinator
	copies    copies

	preferB    bool   // b is preferred
	gone       bool   // a stopped node is not restarted
	forcedTerm uint64 // term of the last forced failover; 0: none
	blind      bool   // a lease has expired while its node was running
}

// wswap is a swap in flight, and the host that sent it.
type wswap struct {
	SwapRecord
	host    int
	reached [3]int // processes that had responded to the sender when it sent the swap
	queried bool   // the sender had queried at least one process
	mark    Mark   // the coordinator's mark
}

// wdisk is the content of a data directory. A copy of the value is a copy of the directory. Its slices are never
// modified in place.
type wdisk struct {
	node, store int // indexes of testNodes and testStores
	inc         uint64
	fence       Fence
	pair        uuid.UUID
	loss        bool
	generation  uuid.UUID // INV-11
	claimed     uuid.UUID
	log         []entry
	durable     int  // length of the log that survives any crash
	known       int  // length of the log known, on disk, to be committed
	copied      bool // the disk was put here, and has not participated as a complete store since then
}

// whost is a machine with an address, its disk, and its process.
type whost struct {
	wdisk
	bare    bool // without a disk
	hidden  bool // its lease has expired while its process runs, and only the active reaches it
	resumed bool // the process resumed from an old memory snapshot
	up      bool
	starts  int
	// announced is true while the process has a lease.
	announced bool
	st        State
	fed       Identity // last identity fed to the machine
	queue     []DataEvent
	swap      *wswap
	load      bool
	query     string // address of the pending identity query
	reached   [3]int // number of the process in each host that has responded
	queried   bool   // this process has queried another process
	drain     uint64 // number of the current drain
	held      bool   // drained: nothing is appended
	primary   *wprimary
	follow    *wfollower
}

type wprimary struct {
	term    uint64
	cfg     ActiveConfig
	ready   bool
	commit  int
	open    bool // the standby's session as seen by this side
	alive   bool // the other side is still connected
	acked   int  // received acks
	sent    int  // acks in flight or received
	caught  bool
	synced  bool
	session Member // member of the session; from is its host
	from    int
}

type wfollower struct {
	to        int // host of the followed address
	connected bool
	alive     bool
	cause     LostCause
}

// Fixed identities, so that equal worlds have equal keys.
var (
	testPair  = uuid.MustParse("99999999-0000-0000-0000-000000000000")
	testNodes = [2]NodeInfo{
		{ID: uuid.MustParse("aaaaaaaa-0000-0000-0000-000000000000"), Name: "a", Address: "a:1"},
		{ID: uuid.MustParse("bbbbbbbb-0000-0000-0000-000000000000"), Name: "b", Address: "b:1"},
	}
	testStores = [2]uuid.UUID{
		uuid.MustParse("a5a5a5a5-0000-0000-0000-000000000000"),
		uuid.MustParse("b5b5b5b5-0000-0000-0000-000000000000"),
	}
)

// hostAddresses are the addresses of the hosts, in order.
var hostAddresses = [3]string{"a:1", "b:1", "c:1"}

// newWorld returns a world with a new disk in each host and no running process.
func newWorld() world {
	var w world
	for i := range testNodes {
		w.hosts[i].wdisk = wdisk{node: i, store: i}
	}
	w.hosts[2].bare = true
	return w
}

// process returns the process name of a host.
func (n *whost) process(i int) string { return fmt.Sprintf("%s%d", hostAddresses[i][:1], n.starts) }

func (w *world) member(i int) Member { return w.hosts[i].identity().Member() }

// hostAt returns the host with an address.
func hostAt(address string) int { return slices.Index(hostAddresses[:], address) }

// errViolated is wrapped by the error of each violated invariant.
var errViolated = errors.New("violated")

func violated(format string, args ...any) error {
	return fmt.Errorf("%w: %s", errViolated, fmt.Sprintf(format, args...))
}

func (d *wdisk) identity() Identity {
	id := Identity{
		Node: nodeOf(d.node).ID, Store: storeOf(d.store), Incarnation: 1 + d.inc, PairID: d.pair, Fence: d.fence,
		MayHaveLost: d.loss,
		Generation:  d.generation, ClaimedGeneration: d.claimed, Committed: uint64(d.known),
	}
	if len(d.log) > 0 {
		id.End = lsn.Position{Term: uint64(d.log[len(d.log)-1].term), LSN: uint64(len(d.log)), Chain: 1}
	}
	return id
}

// feed feeds one event to a node's machine and executes its effects.
func (w *world) feed(i int, ev Event) error {
	_, first := ev.(Started)
	if err := w.feedIdentity(i, !first); err != nil {
		return err
	}
	if err := w.stepNode(i, ev); err != nil {
		return err
	}
	return w.feedIdentity(i, true)
}

// feedIdentity feeds identity changes of the store to the machine.
func (w *world) feedIdentity(i int, started bool) error {
	n := &w.hosts[i]
	id := n.identity()
	if id.End, id.Committed = n.fed.End, n.fed.Committed; id == n.fed || !started {
		n.fed = id
		return nil
	}
	n.fed = id
	return w.stepNode(i, IdentityChanged{Identity: n.identity()})
}

func (w *world) stepNode(i int, ev Event) error { return w.stepAt(i, w.hosts[i].st.now, ev) }

func (w *world) stepAt(i int, now time.Duration, ev Event) error {
	n := &w.hosts[i]
	st, effects := Step(n.st, now, ev)
	if st.epoch != n.st.epoch {
		n.queue = nil // reports of a stopped role are ignored
	}
	n.st = st
	for _, e := range effects {
		if err := w.execute(i, e); err != nil {
			return err
		}
	}
	return nil
}

func (w *world) execute(i int, e Effect) error {
	n := &w.hosts[i]
	switch e := e.(type) {
	case LoadRecord:
		n.load = true
	case SwapRecord:
		n.swap = &wswap{e, i, n.reached, n.queried, w.highMark()}
		if e.Next.Active == n.nodeID() && e.Next.Term > n.st.rec.Term && n.follow != nil {
			return violated("INV-4: node %d swaps while it follows", i)
		}
		if w.rec != nil && e.Next.Active == n.nodeID() && e.Next.Term > n.st.rec.Term &&
			n.fence.Admits(n.st.rec.Config, n.st.rec.Term) {
			return violated("INV-4: node %d swaps with the fence %s, which admits the old active", i, n.fence)
		}
	case JoinPair:
		n.pair = e.Pair
	case SetFence:
		if n.fence.Less(e.Fence) {
			n.fence = e.Fence
		}
	case ClearLoss:
		if n.loss {
			n.loss = false
			n.inc++
		}
	case MarkLoss:
		n.loss = true
	case ClaimGeneration:
		n.generation, n.claimed = e.Listed, e.Claimed
	case ConfirmGeneration:
		n.generation, n.claimed = e.Listed, uuid.Nil
	case WriteMark:
		if w.mark.Less(e.Mark) {
			w.mark = e.Mark
		}
	case Announce:
		n.announced = true
	case Handshake:
		n.query = e.Address
	case StartActive:
		if n.follow != nil || n.primary != nil {
			return violated("node %d starts as active while another role runs", i)
		}
		if w.usedTerms[e.Spec.Term] {
			return violated("term %d is used twice", e.Spec.Term)
		}
		w.usedTerms[e.Spec.Term] = true
		n.primary = &wprimary{term: e.Spec.Term, cfg: e.Spec.ActiveConfig}
		n.log = append(slices.Clone(n.log), entry{term: uint8(e.Spec.Term)})
	case ConfigureActive:
		p := *n.primary
		if p.cfg.Requirement != e.Config.Requirement {
			p.synced = false
		}
		p.cfg = e.Config
		n.primary = &p
	case StopActive:
		n.primary, n.drain, n.held = nil, 0, false
		w.closeFollowerSides(i)
	case StartFollower:
		if n.primary != nil || n.follow != nil {
			return violated("node %d starts to follow while another role runs", i)
		}
		n.follow = &wfollower{to: hostAt(e.Spec.Active.Address)}
	case StopFollower:
		w.closePrimarySide(i)
		n.follow = nil
	case BeginDrain:
		n.drain, n.held = e.Drain, true
	case Resume:
		n.drain, n.held = 0, false
	case Halt:
		return violated("node %d halts: %v", i, e.Err)
	case SwitchoverEnded, AdoptEnded, ForceEnded, Warn:
	default:
		return violated("the model does not support effect %T", e)
	}
	return nil
}

// named reports whether m lists the store of this disk, with its last or claimed generation or without a generation.
func (d *wdisk) named(m Member) bool {
	return m.Is(d.identity().Member().WithGeneration(m.Generation)) &&
		(m.Generation == uuid.Nil || m.Generation == d.generation || m.Generation == d.claimed)
}

// nodeID returns the node that the disk belongs to.
func (d *wdisk) nodeID() uuid.UUID { return nodeOf(d.node).ID }

func (n *whost) post(ev DataEvent) { n.queue = append(slices.Clone(n.queue), ev) }

// swapAt applies a swap in the coordinator.
func (w *world) swapAt(e wswap) (Revision, error) {
	now := Revision(0)
	if w.rec != nil {
		now = w.rev
	}
	if now != e.Expect {
		if w.rec != nil && w.rec.OpID == e.Next.OpID {
			return now, nil
		}
		return 0, ErrConflict
	}
	if err := e.Next.Validate(); err != nil {
		return 0, violated("an invalid record is written: %v", err)
	}
	if w.rec != nil {
		if e.Next.Config != w.rec.Config+1 || e.Next.Term < w.rec.Term {
			return 0, violated("record goes from %d/%d to %d/%d", w.rec.Config, w.rec.Term, e.Next.Config, e.Next.Term)
		}
		if e.Next.Term != w.rec.Term || e.Next.Active != w.rec.Active {
			if _, ok := w.rec.Member(e.Next.Active); !ok && !isForced(e.Next) {
				return 0, violated("INV-4: a node that is not in sync becomes active")
			}
			if e.Next.Term != w.rec.Term+1 {
				return 0, violated("the term is not incremented by the activation")
			}
		}
	}
	if w.rec != nil && isForced(e.Next) && e.Next.Term > w.rec.Term {
		if err := w.force(e.host, e.Next); err != nil {
			return 0, err
		}
	}
	if err := w.losing(e); err != nil {
		return 0, err
	}
	next := e.Next
	w.rec = &next
	w.rev++
	return w.rev, nil
}

// crash stops the process of a host. keep is the length of the log that survives.
func (w *world) crash(i, keep int) {
	n := &w.hosts[i]
	if n.primary != nil {
		w.closeFollowerSides(i)
	}
	if n.follow != nil {
		w.closePrimarySide(i)
	}
	if n.swap != nil { // the request may be in flight
		w.inflight = append(slices.Clone(w.inflight), *n.swap)
	}
	d := n.wdisk
	d.log = slices.Clone(n.log[:keep])
	d.durable, d.known = 0, min(d.known, keep)
	*n = whost{starts: n.starts, wdisk: d}
}

func (w *world) restart(i int) error {
	n := &w.hosts[i]
	w.copies.starts[i]++
	n.starts = w.copies.starts[i]
	n.up = true
	n.durable = len(n.log) // recovery has synced it
	n.st = NewState(w.settings(i), w.info(i), n.process(i), testPair)
	return w.feed(i, Started{Identity: n.identity()})
}

// check returns an error if an invariant is violated.
func (w *world) check() error {
	w.clearCopied()
	alone := 0
	for i := range w.hosts {
		if p := w.hosts[i].primary; p != nil && p.cfg.Serve && !p.cfg.RequireStandby &&
			(p.term >= w.forcedTerm || !w.blind) {
			alone++
		}
	}
	if alone > 1 {
		return violated("both nodes may acknowledge without the other")
	}
	if w.rec == nil {
		return nil
	}
	for _, m := range w.rec.InSync {
		for i := range w.hosts {
			n := &w.hosts[i]
			if n.loss || n.bare || n.copied || !n.named(m) {
				continue // INV-6: it cannot act on its membership; actions of a copy are checked separately
			}
			if c := commonPrefix(n.log, w.committed); c < len(w.committed) {
				return violated("INV-2: host %d is in sync, but its log %v lacks some of %v", i, n.log, w.committed)
			}
		}
	}
	return nil
}
