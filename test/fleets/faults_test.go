// SPDX-License-Identifier: Apache-2.0

//go:build unix

package fleets

import (
	"cmp"
	"context"
	"fmt"
	mathrand "math/rand"
	"math/rand/v2"
	"slices"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/test/simetcd"
	"github.com/lockstep-mq/lockstep/test/simnet"
	"github.com/lockstep-mq/lockstep/test/simpair"
)

// kind is the kind of a fault or of a request of an operator.
type kind uint8

const (
	moveQueue        kind = iota // an operator moves some queues to another pair
	moveGroup                    // an operator moves the placement group of all queues
	cancelMove                   // an operator cancels a move
	drain                        // an operator drains a pair, and undrains it after the duration
	atStep                       // a move, with a fault before one of its steps; see stepFault
	kill                         // a node is killed, and started after the duration
	killBoth                     // both nodes of a pair are killed, and started after the duration
	powerLoss                    // a node loses power and unsynced data, and is started after the duration
	stop                         // a node is stopped, and started after the duration
	switchover                   // an operator hands over the active role within a pair
	pairCut                      // the nodes of a pair do not reach each other
	betweenCut                   // two pairs do not reach each other
	betweenOneWay                // traffic in one direction between two pairs is dropped
	betweenReset                 // all connections between two pairs break
	betweenSlow                  // messages between two pairs take up to 400 ms, with at least 20 kB/s
	nodeIsolated                 // a node reaches no other node
	directoryCut                 // a node does not reach the directory
	directorySilent              // no node reaches the directory, without a response
	directoryDown                // the process of the directory is stopped
	directoryUnsure              // the outcome of the next transactions of the directory is unknown
	directoryOld                 // the directory is restored from an older copy, and rebuilt by an operator
	directoryCompact             // old revisions of the directory are removed
	coordinator                  // a node does not reach the coordinator of its pair
	clientCut                    // the clients do not reach a node
	slowDisk                     // writes and syncs of the log of a node take up to 200 ms
	kinds
)

var kindNames = [kinds]string{
	"move", "move-group", "cancel", "drain", "at-step", "kill", "kill-both", "power-loss", "stop", "switchover",
	"pair-cut", "between-cut", "between-one-way", "between-reset", "between-slow", "node-isolated", "directory-cut",
	"directory-silent", "directory-down", "directory-unsure", "directory-old", "directory-compact", "coordinator",
	"client-cut", "slow-disk",
}

func (k kind) String() string { return kindNames[k] }

// moveSteps are the steps of a move in package mover.
func moveSteps() []string {
	return []string{
		"begin", "copy", "fence", "messages", "state", "compare", "take", "finish", "drop", "forget", "unfence",
	}
}

// stepFault is a fault that begins before a step of a move.
type stepFault struct {
	step   string
	source bool // at the source; otherwise at the target
	kind   kind
	length time.Duration
}

type fault struct {
	At   time.Duration // since the start
	Kind kind
	Pair int // index of the pair
	// Active selects the active node of the pair.
	Active bool
	For    time.Duration
	Rand   uint64 // source of further random choices
}

// drawPlan generates faults. About a third of them are moves.
func drawPlan(rng *rand.Rand, length time.Duration) []fault {
	plan := make([]fault, 6+rng.IntN(14))
	for i := range plan {
		f := fault{
			At: time.Duration(rng.Int64N(int64(length))), Kind: kind(rng.IntN(int(kinds))), Pair: rng.IntN(3),
			Active: rng.IntN(3) > 0, Rand: rng.Uint64N(1 << 32),
		}
		switch rng.IntN(10) {
		case 0, 1, 2:
			f.Kind = moveQueue
		case 3, 4:
			f.Kind = atStep
		}
		if i > 0 && rng.IntN(2) == 0 { // many bugs require two faults within the time of a move
			f.At = plan[rng.IntN(i)].At + time.Duration(rng.Int64N(int64(200*time.Millisecond)))
		}
		f.For = time.Duration(rng.Int64N(int64([]time.Duration{
			300 * time.Millisecond, 1500 * time.Millisecond, 6 * time.Second,
		}[rng.IntN(3)])))
		f.At, f.For = f.At.Round(time.Microsecond), f.For.Round(time.Microsecond)
		plan[i] = f
	}
	slices.SortStableFunc(plan, func(a, b fault) int { return cmp.Compare(a.At, b.At) })
	return plan
}

// ending is the end of a fault.
type ending struct {
	at  time.Time
	end func()
}

// executor executes a plan.
type executor struct {
	*world

	ctx     context.Context // of the test
	endings []ending
	old     simetcd.Copy
	copied  bool
}

// execute executes a plan, and ends all faults.
func (w *world) execute(ctx context.Context, plan []fault) {
	x := &executor{world: w, ctx: ctx}
	start := time.Now()
	for _, f := range plan {
		x.until(start.Add(f.At))
		x.begin(f)
	}
	x.until(start.Add(plan[len(plan)-1].At + time.Second)) // the last move reaches a step
	w.mu.Lock()
	w.armed = nil
	w.mu.Unlock()
	for len(x.endings) > 0 {
		x.until(x.endings[0].at)
	}
	x.heal()
	x.note("healed")
}

// until ends faults, and begins faults at steps of moves, until a time.
func (x *executor) until(t time.Time) {
	for {
		next := t
		if len(x.endings) > 0 && x.endings[0].at.Before(t) {
			next = x.endings[0].at
		}
		timer := time.NewTimer(max(time.Until(next), 0))
		select {
		case s := <-x.steps:
			timer.Stop()
			x.beginAtStep(s)
			continue
		case <-timer.C:
		}
		for len(x.endings) > 0 && !x.endings[0].at.After(time.Now()) {
			e := x.endings[0]
			x.endings = x.endings[1:]
			e.end()
		}
		if !time.Now().Before(t) {
			return
		}
	}
}

func (x *executor) endAfter(d time.Duration, label string, end func()) {
	if end == nil {
		return
	}
	x.endings = append(x.endings, ending{time.Now().Add(d), func() {
		end()
		x.note("end of %s", label)
	}})
	slices.SortStableFunc(x.endings, func(a, b ending) int { return a.at.Compare(b.at) })
}

// beforeStep is called before each step of a move to the pair of m.
func (w *world) beforeStep(ctx context.Context, m *member, name string) error {
	w.counted("step " + name)
	w.checkOwners(ctx)
	w.mu.Lock()
	i := slices.IndexFunc(w.armed, func(f stepFault) bool { return f.step == name })
	var due stepFault
	if i >= 0 {
		due = w.armed[i]
		w.armed = slices.Delete(w.armed, i, i+1)
	}
	w.mu.Unlock()
	if i < 0 {
		return nil
	}
	s := step{fault: due, target: m.pair, done: make(chan struct{})}
	select {
	case w.steps <- s:
	case <-ctx.Done():
		return ctx.Err()
	}
	select {
	case <-s.done:
		return ctx.Err()
	case <-ctx.Done():
		return ctx.Err()
	}
}

// beginAtStep begins a fault at the source or the target of a move that waits for it.
func (x *executor) beginAtStep(s step) {
	defer close(s.done)
	p, side := s.target, "target"
	if s.fault.source {
		side = "source"
		moves, err := pb.NewFleetServiceClient(*x.anyActive(s.target).local.Load()).ListMoves(x.ctx, &pb.ListMovesRequest{})
		if err != nil {
			return
		}
		for _, m := range moves.GetMoves() {
			if m.GetTo() == s.target.name && m.GetPhase() < pb.MovePhase_MOVE_PHASE_DONE {
				p = x.named(m.GetFrom())
			}
		}
	}
	if p == nil || p == s.target && s.fault.source {
		return
	}
	m := x.anyActive(p)
	label := fmt.Sprintf("%v of the %s at %s", s.fault.kind, side, s.fault.step)
	x.note("%s: %s", label, m.name)
	x.counted(s.fault.kind.String() + " of the " + side + " in a move")
	x.counted("fault of the " + side + " at " + s.fault.step)
	x.endAfter(s.fault.length, label, x.beginNode(s.fault.kind, m, uint64(s.fault.length)))
}

func (x *executor) named(name string) *pair {
	for _, p := range x.pairs {
		if p.name == name {
			return p
		}
	}
	return nil
}

// anyActive returns the active node of a pair, or its first node while no node is active.
func (x *executor) anyActive(p *pair) *member {
	return cmp.Or(p.active(x.ctx), p.members[0])
}

// begin begins a fault.
func (x *executor) begin(f fault) {
	p := x.pairs[f.Pair]
	m := x.anyActive(p)
	if !f.Active {
		m = p.other(m)
	}
	x.note("%v of %s for %v", f.Kind, m.name, f.For)
	x.counted(f.Kind.String())
	var end func()
	switch f.Kind {
	case moveQueue, moveGroup:
		x.requestMove(f.Kind, p, f.Rand)
	case cancelMove:
		x.requestCancel(p)
	case drain:
		x.setState(p, pb.PairState_PAIR_STATE_DRAINING)
		end = func() { x.setState(p, pb.PairState_PAIR_STATE_OPEN) }
	case atStep:
		x.arm(f)
		x.requestMove(moveQueue, p, f.Rand)
	case betweenCut, betweenOneWay, betweenReset, betweenSlow:
		end = x.beginBetween(p, x.pairs[(uint64(f.Pair)+1+f.Rand%2)%3], f)
	case directoryCut, directorySilent, directoryDown, directoryUnsure, directoryOld, directoryCompact:
		end = x.beginDirectory(m, f)
	case kinds:
	default:
		end = x.beginNode(f.Kind, m, f.Rand)
	}
	x.endAfter(f.For, f.Kind.String(), end)
}

// arm arms a fault at a step of the next move.
func (x *executor) arm(f fault) {
	rng := rand.New(rand.NewPCG(x.seed, f.Rand))
	steps := moveSteps()
	s := stepFault{
		step: steps[rng.IntN(len(steps))], source: rng.IntN(2) == 0, length: f.For,
		kind: []kind{kill, killBoth, powerLoss, switchover, stop, nodeIsolated, directoryCut}[rng.IntN(7)],
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.armed = append(x.armed, s)
}

// beginNode begins a fault of a node or a pair. It returns the function that ends it; nil for a fault without a
// duration.
func (x *executor) beginNode(k kind, m *member, rng uint64) (end func()) {
	other := m.pair.other(m)
	switch k {
	case kill:
		return x.down(m, func() { m.node.Kill() })
	case killBoth:
		first, second := x.down(m, func() { m.node.Kill() }), x.down(other, func() { other.node.Kill() })
		return func() { first(); second() }
	case powerLoss:
		return x.losePower(m, rng)
	case stop:
		return x.down(m, func() {
			if err := m.node.Stop(); err != nil {
				x.T.Errorf("seed %d: %s stopped: %v", x.seed, m.name, err)
			}
		})
	case switchover:
		x.requestSwitchover(m)
		return nil
	case pairCut:
		x.Net.SetCut(m.host, other.host, true)
		return func() { x.Net.SetCut(m.host, other.host, false) }
	case nodeIsolated:
		return x.cutFrom(m, func(o *member) bool { return o != m })
	case directoryCut:
		x.Net.SetCut(m.host, x.Host("etcd"), true)
		return func() { x.Net.SetCut(m.host, x.Host("etcd"), false) }
	case coordinator:
		m.node.SetCoordinatorReachable(false)
		return func() { m.node.SetCoordinatorReachable(true) }
	case clientCut:
		x.Net.SetCut(m.host, x.Host("client"), true)
		return func() { x.Net.SetCut(m.host, x.Host("client"), false) }
	case slowDisk:
		m.slow.Store(int64(time.Millisecond) << (rng % 8))
		return func() { m.slow.Store(0) }
	default:
		panic(k)
	}
}

// cutFrom cuts a node from the selected members.
func (x *executor) cutFrom(m *member, selected func(*member) bool) (end func()) {
	cut := func(cut bool) {
		for _, o := range x.members() {
			if selected(o) {
				x.Net.SetCut(m.host, o.host, cut)
			}
		}
	}
	cut(true)
	return func() { cut(false) }
}

// down calls end, which ends the process of m. The returned function starts it again.
func (x *executor) down(m *member, end func()) (restart func()) {
	if !m.up {
		return func() {}
	}
	m.up = false
	end()
	return func() { x.restart(m) }
}

func (x *executor) losePower(m *member, rng uint64) (restart func()) {
	if !m.up {
		return func() {}
	}
	m.up = false
	x.Net.SetPower(m.host, false)
	m.node.Kill()
	m.mem = m.mem.CrashClone(mathrand.New(mathrand.NewSource(int64(rng))))
	m.boot++
	return func() { x.restart(m) }
}

func (x *executor) restart(m *member) {
	if m.up {
		return
	}
	x.Net.SetPower(m.host, true)
	_ = m.node.Stop() // waits for the process
	x.launch(m)
}

// beginBetween begins a fault of the links between two pairs.
func (x *executor) beginBetween(p, q *pair, f fault) (end func()) {
	each := func(f func(a, b *member)) {
		for _, a := range p.members {
			for _, b := range q.members {
				f(a, b)
			}
		}
	}
	switch f.Kind {
	case betweenReset:
		each(func(a, b *member) { x.Net.ResetLink(a.host, b.host) })
		return nil
	case betweenSlow:
		delay, rate := time.Duration(f.Rand%uint64(400*time.Millisecond)), 20_000<<(f.Rand%8)
		each(func(a, b *member) {
			for _, way := range simnet.Both(a.host, b.host) {
				x.Net.Change(way, func(l *simnet.Link) { l.Delay, l.BytesPerSecond = delay, rate })
			}
		})
		return func() { each(func(a, b *member) { x.setDelay(a, b, simpair.Latency) }) }
	default: // betweenCut, betweenOneWay
		each(func(a, b *member) {
			x.Net.Change(simnet.Way{From: a.host, To: b.host}, func(l *simnet.Link) { l.Cut = true })
			if f.Kind == betweenCut {
				x.Net.Change(simnet.Way{From: b.host, To: a.host}, func(l *simnet.Link) { l.Cut = true })
			}
		})
		return func() { each(func(a, b *member) { x.Net.SetCut(a.host, b.host, false) }) }
	}
}

// beginDirectory begins a fault of the directory.
func (x *executor) beginDirectory(m *member, f fault) (end func()) {
	silent := func(cut bool) {
		for _, m := range x.members() {
			x.Net.SetCut(m.host, x.Host("etcd"), cut)
		}
	}
	switch f.Kind {
	case directoryCut:
		return x.beginNode(directoryCut, m, 0)
	case directorySilent:
		silent(true)
		return func() { silent(false) }
	case directoryDown:
		x.dirDown = true
		x.etcdEnd()
		return x.restartEtcd
	case directoryUnsure:
		outcomes := make([]simetcd.Outcome, 1+f.Rand%4)
		for i := range outcomes {
			outcomes[i] = simetcd.Outcome(1 + (f.Rand>>(4+i))%3)
		}
		x.etcd.SetOutcomes(outcomes...)
		return nil
	case directoryCompact:
		_, err := x.etcd.Compact(x.ctx, &etcdserverpb.CompactionRequest{})
		x.note("compaction: %v", err)
		return nil
	default: // directoryOld
		x.old, x.copied = x.etcd.Copy(), true
		return x.restoreDirectory
	}
}

func (x *executor) restartEtcd() {
	if x.dirDown {
		x.startEtcd()
		x.dirDown = false
	}
}

// afterRestore is the time in which nodes detect that the directory was restored. During this time, no faults begin:
// if all nodes that know the highest epoch are down, it cannot be detected.
const afterRestore = 2 * time.Second

// restoreDirectory restores the last copy of the directory, and rebuilds it as an operator does. It has no effect
// during other faults.
func (x *executor) restoreDirectory() {
	up := !slices.ContainsFunc(x.members(), func(m *member) bool { return !m.up })
	if len(x.endings) > 0 || x.dirDown || !up || !x.copied || x.directoryProblem(x.ctx) != "" {
		return
	}
	x.etcd.Restore(x.old)
	x.copied = false
	x.note("directory restored")
	x.counted("directories restored")
	sleep(x.ctx, afterRestore)
	x.running.Go(func() { x.rebuild(x.ctx) })
}

// heal removes the effects of all faults.
func (x *executor) heal() {
	x.Net.Heal()
	x.restartEtcd()
	x.etcd.SetOutcomes()
	for _, m := range x.members() {
		m.slow.Store(0)
		x.restart(m)
		m.node.SetCoordinatorReachable(true)
	}
	x.running.Wait()
}
