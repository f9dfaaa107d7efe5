// SPDX-License-Identifier: Apache-2.0

//go:build unix && deep

package fleet

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/test/harness"
)

// steps are the steps before which moves are stopped. The last one requires a cancellation.
var steps = []string{
	"begin", "copy", "fence", "messages", "state", "compare", "take", "finish", "drop", "forget", "unfence",
}

const unfence = "unfence"

// cancelable are the steps at which a move is canceled, before it is stopped at unfence.
var cancelable = []string{"copy", "fence", "messages", "state", "compare", "take"}

// fault is the process that is killed.
type fault string

const (
	sourceActive  fault = "active of the source"
	sourceStandby fault = "standby of the source"
	targetActive  fault = "active of the target"
	targetStandby fault = "standby of the target"
	sourcePair    fault = "both nodes of the source"
	targetPair    fault = "both nodes of the target"
	thirdActive   fault = "active of the third pair"
	killEtcd      fault = "etcd"
	requested     fault = "node that received the request"
)

// faults are the faults at a step.
var faults = []fault{
	sourceActive, sourceStandby, targetActive, targetStandby, sourcePair, targetPair, thirdActive, killEtcd,
}

const (
	// requestRounds is the interval between rounds in which the request is interrupted.
	requestRounds = 6
	// alsoMoves is the reciprocal of the fraction of rounds in which the other queue moves concurrently.
	alsoMoves    = 4
	maxKillDelay = 30 * time.Millisecond
	maxDowntime  = 1500 * time.Millisecond
	requestDelay = 20 * time.Millisecond
)

// round is a move with a fault.
type round struct {
	queue    string
	from, to *pair
	step     string
	cancelAt string // step at which the move is canceled; empty for none
	fault    fault
	early    bool // the process is killed while the move is stopped, not afterwards
	delay    time.Duration
	downtime time.Duration
	other    string // queue that moves concurrently; empty for none
	otherTo  *pair
}

// total counts the faults that had an effect.
type total struct {
	faults, steps map[string]int
	combinations  map[[2]string]bool // steps with faults
	pauses        []time.Duration
	moved         int
	notMoved      map[string]int // by error
}

// Moves of queues under load lose, duplicate and reorder no message, and each queue has at most one owner at any time,
// even if a process is killed in each round.
func TestMoves(t *testing.T) {
	r, n := random(t), number(t, "LOCKSTEP_MOVES", 14, 6)
	messages := number(t, "LOCKSTEP_MOVE_MESSAGES", 20_000, 2_000)
	queues := []string{"orders", "events"}
	w := newWorld(t)
	c := w.client(w.pairs[0])
	w.create(c, queues...)
	golang := newGoProducer(w, c, messages*len(queues), queues...)
	producers := []producer{golang}
	if p := newPythonProducer(w, w.pairs[1].Addresses(), queues...); p != nil {
		producers = append(producers, p)
	}
	own := map[string]producer{}
	for _, q := range queues {
		own[q] = newAMQPProducer(w, q)
	}
	consumers := newConsumers(w, queues)
	all := slices.Concat(producers, slices.Collect(maps.Values(own)))
	select {
	case <-golang.preloaded:
	case <-limited(t).Done():
		require.FailNow(t, "the first messages are not confirmed")
	}
	t.Logf("%d messages in each queue", messages)
	continued := func() {
		since := time.Now()
		for _, p := range all {
			p.continued(since)
		}
		for _, q := range queues {
			n := confirmed(all, q)
			for _, co := range consumers {
				co.deliveries(q).caughtUp(n)
			}
		}
	}
	continued()

	stepOrder, faultOrder := r.Perm(len(steps)), r.Perm(len(faults))
	logs := newLogs(w)
	sum := total{
		faults: map[string]int{}, steps: map[string]int{}, combinations: map[[2]string]bool{}, notMoved: map[string]int{},
	}
	at := 0
	for i := range n {
		began := time.Now()
		w.inSync()
		rd := w.choose(r, queues)
		if i%requestRounds == requestRounds-1 {
			rd.fault, rd.step, rd.cancelAt = requested, "", ""
		} else {
			rd.step, rd.fault = steps[stepOrder[at%len(steps)]], faults[faultOrder[at%len(faults)]]
			at++
		}
		if rd.step == unfence {
			rd.cancelAt = cancelable[r.IntN(len(cancelable))]
		}
		w.round.Add(1)
		last := w.run(&rd, &sum)
		w.inSync()
		continued() // also delivers the messages that were in flight during the round
		w.round.Add(1)
		logs.read()
		owner, epoch := w.owner(rd.queue)
		sum.outcome(&rd, owner, last)
		t.Logf("round %d: %v; now at %s, epoch %d; %s", i+1, &rd, owner.name, epoch,
			time.Since(began).Round(time.Millisecond))
	}
	for _, p := range all {
		p.finish()
	}
	owners := map[string]string{}
	for _, q := range queues {
		n := confirmed(all, q)
		for _, co := range consumers {
			co.deliveries(q).finish(c, n)
		}
		owner, _ := w.owner(q)
		owners[q] = owner.name
	}
	for _, co := range consumers {
		co.stop()
	}
	w.inSync()
	for _, q := range queues {
		verify(t, c, q, append(slices.Clone(producers), own[q]), consumers)
	}
	w.equal(owners)
	sum.report(t, checkOwners(w, logs, owners, producers), n)
}

// checkOwners verifies the ownership of the queues according to the logs and the receipts of the producers. owners are
// the pairs that own the queues. It returns the number of moves.
func checkOwners(w *world, logs *logs, owners map[string]string, producers []producer) int {
	t := w.t
	t.Helper()
	eventuallyRead(w, logs)
	moves, err := checkMoves(logs.all())
	require.NoError(t, err)
	for q, owner := range owners {
		tenures, err := checkTenures(q, moves)
		require.NoError(t, err)
		var receipts []receipt
		for _, p := range producers {
			receipts = append(receipts, p.receipts(q)...)
		}
		if len(tenures) == 0 {
			continue
		}
		counts, err := checkReceipts(q, tenures, receipts)
		require.NoError(t, err)
		t.Logf("%s: %d owners with %v confirmed messages", q, len(tenures), counts)
		require.Equal(t, owner, tenures[len(tenures)-1].pair, "last owner of %s", q)
	}
	return len(moves)
}

// confirmed returns the number of messages of a queue that are confirmed.
func confirmed(producers []producer, queue string) (n int) {
	for _, p := range producers {
		n += len(p.confirmed(queue))
	}
	return n
}

// newConsumers starts a consumer with each kind of client.
func newConsumers(w *world, queues []string) []consumer {
	w.t.Helper()
	all := []consumer{newGoConsumer(w, w.client(w.pairs[2]), queues...), newAMQPConsumer(w, queues...)}
	if co := newPythonConsumer(w, w.pairs[0].Addresses(), queues...); co != nil {
		all = append(all, co)
	}
	return all
}

// eventuallyRead reads the logs until all moves in them have ended.
func eventuallyRead(w *world, logs *logs) {
	w.t.Helper()
	var err error
	for range 100 {
		if logs.read(); logs.unfinished() == nil {
			return
		}
		err = logs.unfinished()
		pass(w.t, time.Second)
	}
	require.NoError(w.t, err)
}

// choose returns a round with a random queue and target.
func (w *world) choose(r *rand.Rand, queues []string) round {
	w.t.Helper()
	rd := round{
		early: r.IntN(2) == 0, delay: time.Duration(r.Int64N(int64(maxKillDelay))),
		downtime: time.Duration(r.Int64N(int64(maxDowntime))),
	}
	order := r.Perm(len(queues))
	rd.queue = queues[order[0]]
	rd.from, _ = w.owner(rd.queue)
	targets := w.others(rd.from.name)
	rd.to = targets[r.IntN(len(targets))]
	if r.IntN(alsoMoves) == 0 {
		rd.other = queues[order[1]]
		owner, _ := w.owner(rd.other)
		targets := w.others(owner.name)
		rd.otherTo = targets[r.IntN(len(targets))]
	}
	return rd
}

func (rd *round) String() string {
	s := fmt.Sprintf("%s from %s to %s", rd.queue, rd.from.name, rd.to.name)
	if rd.cancelAt != "" {
		s += ", canceled at " + rd.cancelAt
	}
	if rd.step != "" {
		s += ", step " + rd.step
	}
	if s += fmt.Sprintf(", killed: %s, down for %v", rd.fault, rd.downtime.Round(time.Millisecond)); rd.other != "" {
		s += fmt.Sprintf("; also %s to %s", rd.other, rd.otherTo.name)
	}
	return s
}

// victim returns the functions that kill and restart the process of the fault.
func (w *world) victim(rd *round) (kill func() error, restart func()) {
	w.t.Helper()
	if rd.fault == killEtcd {
		return w.etcd.kill, w.etcd.start
	}
	of := rd.to
	switch rd.fault {
	case sourceActive, sourceStandby, sourcePair:
		of = rd.from
	case thirdActive:
		of = w.others(rd.from.name, rd.to.name)[0]
	}
	n, standby, err := of.WaitInSync(limited(w.t))
	require.NoError(w.t, err)
	if rd.fault == sourceStandby || rd.fault == targetStandby {
		n = standby
	}
	victims := []*harness.Node{n}
	if rd.fault == sourcePair || rd.fault == targetPair {
		victims = of.Nodes
	}
	kill = func() error {
		var errs []error
		for _, n := range victims {
			errs = append(errs, n.Kill())
		}
		return errors.Join(errs...)
	}
	return kill, func() {
		for _, n := range victims {
			require.NoError(w.t, n.Start())
		}
	}
}

// run executes a round, and returns the last state of the move that the target has reported, which may be nil.
func (w *world) run(rd *round, sum *total) *pb.FleetMove {
	t := w.t
	t.Helper()
	kill, restart := w.victim(rd)
	if rd.fault == requested {
		w.interruptRequest(rd, kill)
		sum.faults[string(requested)]++
		pass(t, rd.downtime)
		restart()
		return w.ended(rd.to, w.begin(rd.queue, rd.to))
	}
	for _, step := range []string{rd.cancelAt, rd.step} {
		if step != "" {
			require.NoError(t, rd.to.stop(step))
		}
	}
	epoch := w.begin(rd.queue, rd.to)
	var otherEpoch uint64
	if rd.other != "" {
		otherEpoch = w.begin(rd.other, rd.otherTo)
	}
	stopped := true
	if rd.cancelAt != "" {
		stopped = w.stopped(rd, rd.cancelAt, epoch)
		_, active, _ := rd.to.moves(t.Context())
		_, err := service(active).CancelMove(t.Context(), &pb.CancelMoveRequest{Epoch: epoch})
		if err != nil {
			t.Logf("move %d was not canceled: %v", epoch, err)
		}
		require.NoError(t, rd.to.release(rd.cancelAt))
	}
	if stopped = stopped && w.stopped(rd, rd.step, epoch); stopped {
		sum.steps[rd.step]++
		sum.faults[string(rd.fault)]++
		sum.combinations[[2]string{rd.step, string(rd.fault)}] = true
	} else {
		t.Logf("move %d was not stopped at step %s", epoch, rd.step)
	}
	if !rd.early {
		require.NoError(t, rd.to.release(rd.step))
		pass(t, rd.delay)
	}
	require.NoError(t, kill())
	require.NoError(t, rd.to.release(rd.step))
	pass(t, rd.downtime)
	restart()
	if rd.other != "" {
		w.ended(rd.otherTo, otherEpoch)
	}
	return w.ended(rd.to, epoch)
}

// interruptRequest kills the active of the target while it executes a request.
func (w *world) interruptRequest(rd *round, kill func() error) {
	w.t.Helper()
	active, err := rd.to.WaitActive(limited(w.t))
	require.NoError(w.t, err)
	answered := make(chan error, 1)
	ctx := limited(w.t)
	go func(n *harness.Node) {
		_, err := service(n).MoveQueues(ctx, &pb.MoveQueuesRequest{Queues: []string{rd.queue}})
		answered <- err
	}(active)
	pass(w.t, rd.delay*requestDelay/maxKillDelay)
	require.NoError(w.t, kill())
	w.t.Logf("interrupted request: %v", <-answered)
}

// stopped waits until the move is stopped before a step. It returns false if the move has ended.
func (w *world) stopped(rd *round, step string, epoch uint64) bool {
	w.t.Helper()
	began := time.Now()
	for !rd.to.reached(step) {
		moves, _, ok := rd.to.moves(limited(w.t))
		i := slices.IndexFunc(moves, func(m *pb.FleetMove) bool { return m.GetEpoch() == epoch })
		if ok && i < 0 || i >= 0 && hasEnded(moves[i]) {
			return rd.to.reached(step)
		}
		require.Less(w.t, time.Since(began), bound, "step %s of %v", step, moves)
		pass(w.t, interval)
	}
	return true
}

// outcome records the outcome of a round.
func (sum *total) outcome(rd *round, owner *pair, last *pb.FleetMove) {
	if owner == rd.to {
		sum.moved++
		if p := last.GetPause().AsDuration(); p > 0 {
			sum.pauses = append(sum.pauses, p)
		}
		return
	}
	sum.notMoved[last.GetError()]++
}

// report logs the totals. In a long run, each fault must have had an effect at each step.
func (sum *total) report(t *testing.T, moves, rounds int) {
	t.Helper()
	t.Logf("%d rounds: %d moved; not moved, by error: %v; %d moves in the logs", rounds, sum.moved, sum.notMoved, moves)
	t.Logf("faults: %v", sum.faults)
	t.Logf("steps: %v; %d of %d combinations with faults", sum.steps, len(sum.combinations), len(steps)*len(faults))
	if slices.Sort(sum.pauses); len(sum.pauses) > 0 {
		t.Logf("pauses of moves, including the kills and the stops: median %v, maximum %v",
			sum.pauses[len(sum.pauses)/2].Round(time.Millisecond), sum.pauses[len(sum.pauses)-1].Round(time.Millisecond))
	}
	require.Positive(t, sum.moved)
	require.NotEmpty(t, sum.steps, "LOCKSTEP_BINARY must be built with the tag faultdisk")
	if long := 2 * len(steps); rounds >= long {
		for _, step := range steps {
			require.Positive(t, sum.steps[step], "no fault at step %s", step)
		}
		for _, f := range append(slices.Clone(faults), requested) {
			require.Positive(t, sum.faults[string(f)], "no kill of: %s", f)
		}
	}
}
