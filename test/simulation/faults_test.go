// SPDX-License-Identifier: Apache-2.0

//go:build unix

package simulation

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/test/simnet"
)

// switchoverLimit is an operator's timeout for a switchover.
const switchoverLimit = 5 * time.Second

// injectFaults executes the plan and returns when all of its faults have ended; heal removes their lasting effects.
// If the setting sync is not "always", it executes the faults one by one. In this case, it returns an error if the
// pair is not in sync in time after a fault.
func (w *world) injectFaults(ctx context.Context, plan []fault) error {
	start := time.Now()
	var faults sync.WaitGroup
	defer faults.Wait()
	for _, f := range plan {
		sleep(ctx, f.At-time.Since(start))
		begin, end := w.fault(ctx, f, w.find(ctx, f.Target))
		if begin == nil {
			continue
		}
		w.record("%v of %v for %v", f.Kind, f.Target, f.For)
		if begin() {
			w.count(f.Kind)
		}
		if end == nil {
			end = func() {}
		}
		faults.Go(func() {
			sleep(ctx, f.For)
			end()
			w.record("end of %v of %v", f.Kind, f.Target)
		})
		if w.options.Sync != always {
			faults.Wait()
			w.heal()
			if err := w.waitSettled(ctx); err != nil {
				return fmt.Errorf("after %v of %v: %w", f.Kind, f.Target, err)
			}
		}
	}
	return nil
}

// waitSettled waits until the pair is in sync and no maintenance plan is running. With sync=off, a power loss of one
// node while a plan restarts the other node loses acknowledged messages, as documented.
func (w *world) waitSettled(ctx context.Context) error {
	if err := w.waitInSync(ctx); err != nil || !w.maintenanceRequested {
		return err
	}
	if err := w.waitMaintained(ctx); err != nil {
		return err
	}
	return w.waitInSync(ctx)
}

func sleep(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(max(d, 0))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// find returns the target host of a fault, and the other host.
func (w *world) find(ctx context.Context, principal target) [2]*host {
	a, b := w.hosts[0], w.hosts[1]
	switch active := w.serving(ctx); {
	case principal == nodeB, principal == activeNode && active == b, principal == standbyNode && active == a:
		return [2]*host{b, a}
	default:
		return [2]*host{a, b}
	}
}

// fault returns the functions that start and end a fault. begin reports whether the fault took effect immediately; a
// fault with a later effect counts itself. end is nil for a fault without a duration.
func (w *world) fault(ctx context.Context, f fault, hosts [2]*host) (begin func() bool, end func()) {
	h, other := hosts[0], hosts[1]
	switch f.Kind {
	case kill:
		return w.down(func() bool { return h.kill(false) }, h.restart)
	case powerLoss:
		return w.down(func() bool { return h.kill(true) }, h.restart)
	case powerLossOfBoth:
		apart := time.Duration(f.Rand % uint64(50*time.Millisecond))
		if f.Rand%3 == 0 {
			apart = 0
		}
		return func() bool {
				one := h.kill(true)
				sleep(ctx, apart)
				return other.kill(true) && one
			}, func() {
				h.restart()
				sleep(ctx, apart*20)
				other.restart()
			}
	case stopped:
		return w.down(h.stopForNow, h.restart)
	case switchover:
		return later(func() { w.switchOver(ctx, h) }), nil
	case maintenance:
		return later(func() { w.startPlan(ctx, h, f.Rand) }), nil
	case recordLost:
		return func() bool {
			w.recordLost = true
			w.store.server.Forget()
			return true
		}, nil
	case swapUnsettled:
		outcome := swapReplyLost + swapOutcome(f.Rand%3)
		return later(func() { w.store.outcome(h.name, outcome) }), nil
	case slowDisk, stalledDisk, failedSync, lowDisk:
		return w.diskFault(f, h)
	case fullQueue:
		return later(func() { w.limitQueues(ctx, 1, f.Rand) }), func() { w.limitQueues(ctx, 0, f.Rand) }
	case pausedQueue:
		paused := make(chan struct{})
		return later(func() { w.pauseQueues(ctx, f.Rand, paused) }), func() { w.resumeQueues(ctx, paused) }
	case producersEvicted:
		return later(func() { w.producersEvicted.Add(1) }), nil
	case coordinatorUnresponsive, coordinatorDown:
		return w.coordinatorFault(ctx, f, h)
	case frozen:
		return func() bool {
				w.setAlone(h, true)
				w.store.stopResponding(h.name, true)
				return h.onDisk(func(d *disk) { d.stalled = true })
			}, func() {
				h.onDisk(func(d *disk) { d.stalled = false })
				w.store.stopResponding(h.name, false)
				w.setAlone(h, false)
			}
	case isolated:
		return func() bool {
				if f.Rand%2 == 0 { // the node does not receive the outcome of the request in flight
					w.store.outcome(h.name, swapReplyLost+swapOutcome(f.Rand/2%3))
				}
				w.isolate(h, other, true)
				w.store.stopResponding(h.name, true)
				return h.alive()
			}, func() {
				w.isolate(h, other, false)
				w.store.stopResponding(h.name, false)
			}
	default:
		return w.linkFault(f, h, other)
	}
}

// down returns the functions of a fault that ends a process with kill, and starts it with restart. kill reports
// whether the process was running.
func (w *world) down(kill func() bool, restart func()) (begin func() bool, end func()) {
	killed := false
	return func() bool {
			killed = kill()
			return killed
		}, func() {
			if killed {
				restart()
			}
		}
}

// later returns a begin function for a fault that may take effect later.
func later(begin func()) func() bool {
	return func() bool {
		begin()
		return false
	}
}

// diskFault returns a fault that takes effect, and is counted, at the next use of the disk.
func (w *world) diskFault(f fault, h *host) (begin func() bool, end func()) {
	set := func(change func(*disk)) func() { return func() { h.onDisk(change) } }
	failed := func(d *disk) { d.failed = func() { w.count(f.Kind) } }
	switch f.Kind {
	case slowDisk:
		return later(set(func(d *disk) {
			failed(d)
			d.delay = time.Millisecond + time.Duration(f.Rand%uint64(150*time.Millisecond))
		})), set(func(d *disk) { d.delay = 0 })
	case stalledDisk:
		return later(set(func(d *disk) {
			failed(d)
			d.stalled = true
		})), set(func(d *disk) { d.stalled = false })
	case lowDisk:
		return later(set(func(d *disk) {
			d.full = func() { w.count(f.Kind) }
			d.low = true
		})), set(func(d *disk) { d.low = false })
	default:
		return later(set(func(d *disk) {
			failed(d)
			d.failSync = true
		})), nil
	}
}

// coordinatorFault returns a fault of the coordinator: an outage, or an unresponsive coordinator, which the node
// detects after up to 2 s.
func (w *world) coordinatorFault(ctx context.Context, f fault, h *host) (begin func() bool, end func()) {
	if f.Kind == coordinatorDown {
		return func() bool {
			w.store.server.SetDown(true)
			return true
		}, func() { w.store.server.SetDown(false) }
	}
	finds := time.Duration(f.Rand % uint64(2*time.Second))
	ctx, cancel := context.WithCancel(ctx)
	var finding sync.WaitGroup
	return func() bool {
			w.store.stopResponding(h.name, true)
			finding.Go(func() {
				if sleep(ctx, finds); ctx.Err() == nil {
					w.store.notify(h.name, false)
				}
			})
			return h.alive()
		}, func() {
			cancel()
			finding.Wait()
			w.store.stopResponding(h.name, false)
			w.store.notify(h.name, true)
		}
}

func (w *world) linkFault(f fault, h, other *host) (begin func() bool, end func()) {
	alive := func() bool { return h.alive() && other.alive() }
	switch f.Kind {
	case clientCut, clientOneWay, clientReset:
		alive = h.alive
	}
	inject := func(f func()) func() bool {
		return func() bool {
			f()
			return alive()
		}
	}
	cut := func(ways ...simnet.Way) (begin func() bool, end func()) {
		return inject(func() { w.setCut(true, ways...) }), func() { w.setCut(false, ways...) }
	}
	switch f.Kind {
	case partition:
		return cut(simnet.Both(h.name, other.name)...)
	case oneWay:
		return cut(simnet.Way{From: h.name, To: other.name})
	case clientCut:
		return cut(simnet.Both(h.name, clientHost)...)
	case clientOneWay:
		return cut(simnet.Both(h.name, clientHost)[f.Rand%2])
	case reset:
		return inject(func() { w.net.ResetLink(h.name, other.name) }), nil
	case clientReset:
		return inject(func() { w.net.ResetLink(h.name, clientHost) }), nil
	default: // slowLink
		slow := func(delay, jitter time.Duration) func() {
			return func() {
				for _, x := range simnet.Both(h.name, other.name) {
					w.net.Change(x, func(l *simnet.Link) { l.Delay, l.Jitter = delay, jitter })
				}
			}
		}
		most := time.Duration(f.Rand % uint64(400*time.Millisecond))
		return inject(slow(most/2, most/2)), slow(normalDelay, normalJitter)
	}
}

// isolate cuts the link between two hosts, or restores it.
func (w *world) isolate(a, b *host, apart bool) { w.setCut(apart, simnet.Both(a.name, b.name)...) }

// setAlone cuts the links between a host and all others, or restores them.
func (w *world) setAlone(h *host, alone bool) {
	for _, name := range []string{w.hosts[0].name, w.hosts[1].name, clientHost} {
		if name != h.name {
			w.setCut(alone, simnet.Both(h.name, name)...)
		}
	}
}

func (w *world) setCut(on bool, ways ...simnet.Way) {
	for _, x := range ways {
		w.net.Change(x, func(l *simnet.Link) { l.Cut = on })
	}
}

// switchOver requests a switchover without waiting for the response.
func (w *world) switchOver(ctx context.Context, h *host) {
	w.running.Go(func() {
		ctx, cancel := context.WithTimeout(ctx, switchoverLimit)
		defer cancel()
		resp, err := pb.NewAdminServiceClient(w.ConnTo(h.address)).Switchover(ctx, &pb.SwitchoverRequest{})
		if err != nil {
			w.record("no switchover: %v", err)
			return
		}
		w.count(switchover)
		w.record("switchover done: %v", resp)
	})
}

// startPlan starts a maintenance plan. The pair continues the plan after any fault, and recovered waits for its end.
func (w *world) startPlan(ctx context.Context, h *host, rng uint64) {
	kinds := []pb.PlanKind{pb.PlanKind_PLAN_KIND_RESIZE, pb.PlanKind_PLAN_KIND_COMPACT, pb.PlanKind_PLAN_KIND_RESTART}
	req := &pb.StartPlanRequest{Kind: kinds[rng%uint64(len(kinds))]}
	if req.Kind == pb.PlanKind_PLAN_KIND_RESIZE {
		req.PageSize = 2 << 10 << (rng / 3 % 4)
	}
	w.maintenanceRequested = true
	w.running.Go(func() {
		ctx, cancel := context.WithTimeout(ctx, switchoverLimit)
		defer cancel()
		if _, err := pb.NewMaintenanceServiceClient(w.ConnTo(h.address)).StartPlan(ctx, req); err != nil {
			w.record("plan %v is not started: %v", req, err)
			return
		}
		w.count(maintenance)
		w.record("plan %v is started", req)
	})
}

// limitQueues sets the message limit of the applications' queues, directly or by policies; 0 removes the limit.
func (w *world) limitQueues(ctx context.Context, messages, choice uint64) {
	w.running.Go(func() {
		for _, queue := range w.refusable {
			err := w.onQueue(ctx, func(ctx context.Context, queues pb.QueueServiceClient) error {
				return limit(ctx, queues, queue, messages, choice%2 == 0)
			})
			if err != nil {
				w.record("the limit of %s is not changed: %v", queue, err)
				return
			}
		}
		w.record("the limit of the queues is %d messages (0: no limit)", messages)
		if messages > 0 {
			w.count(fullQueue)
		}
	})
}

func limit(ctx context.Context, queues pb.QueueServiceClient, queue string, messages uint64, policy bool) (err error) {
	limits := &pb.QueueConfig{MaxMessages: messages}
	switch {
	case !policy:
		_, err = queues.AlterQueue(ctx, &pb.AlterQueueRequest{Name: queue, Config: limits})
	case messages == 0:
		_, err = queues.DeletePolicy(ctx, &pb.DeletePolicyRequest{Pattern: queue})
	default:
		_, err = queues.PutPolicy(ctx, &pb.PutPolicyRequest{Policy: &pb.QueuePolicy{Pattern: queue, Limits: limits}})
	}
	return err
}

// pauseQueues pauses publishing, delivery or both on the applications' queues. It closes done after the last call.
func (w *world) pauseQueues(ctx context.Context, choice uint64, done chan<- struct{}) {
	w.running.Go(func() {
		defer close(done)
		for _, queue := range w.refusable {
			err := w.onQueue(ctx, func(ctx context.Context, queues pb.QueueServiceClient) error {
				_, err := queues.PauseQueue(ctx, &pb.PauseQueueRequest{
					Queue: queue, Publish: choice%3 == 0, Deliver: choice%3 == 1, Reason: "simulation",
				})
				return err
			})
			if err != nil {
				w.record("%s is not paused: %v", queue, err)
				return
			}
		}
		w.record("queues are paused (%d)", choice%3)
		w.count(pausedQueue)
	})
}

// resumeQueues resumes the applications' queues after paused is closed. It retries until it succeeds, because the
// simulation cannot end with a paused queue.
func (w *world) resumeQueues(ctx context.Context, paused <-chan struct{}) {
	w.running.Go(func() {
		<-paused
		ctx := context.WithoutCancel(ctx) // the plan may end earlier
		for _, queue := range w.refusable {
			resume := func(ctx context.Context, queues pb.QueueServiceClient) error {
				_, err := queues.ResumeQueue(ctx, &pb.ResumeQueueRequest{Queue: queue})
				return err
			}
			for w.onQueue(ctx, resume) != nil {
				sleep(ctx, 100*time.Millisecond)
			}
		}
		w.record("queues are resumed")
	})
}

var errNotServing = errors.New("no node serves")

func (w *world) onQueue(ctx context.Context, call func(context.Context, pb.QueueServiceClient) error) error {
	ctx, cancel := context.WithTimeout(ctx, switchoverLimit)
	defer cancel()
	h := w.serving(ctx)
	if h == nil {
		return errNotServing
	}
	return call(ctx, pb.NewQueueServiceClient(w.ConnTo(h.address)))
}

// identities records the transaction producers of the workload, to simulate their eviction.
type identities struct {
	producersEvicted atomic.Uint64 // number of simulated evictions of all producers

	mu       sync.Mutex // guards all fields below
	known    map[string]uint64
	reported uint64
}

// removeIdentity is an interceptor of the clients' calls. A node evicts a producer only after 100,000 others, which a
// simulation does not reach. So the interceptor returns the error for an evicted producer, for every commit and queue
// change of a producer that is older than the fault.
func (w *world) removeIdentity(
	ctx context.Context, method string, req, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker,
	o ...grpc.CallOption,
) error {
	if c, ok := req.(interface{ GetProducer() *pb.Producer }); ok && w.isRemoved(c.GetProducer().GetId()) {
		st, err := status.New(codes.OutOfRange, "simulated: the producer is no longer known").
			WithDetails(&errdetails.ErrorInfo{Reason: "PRODUCER_UNKNOWN", Domain: "lockstep.v1"})
		if err != nil {
			return err
		}
		return st.Err()
	}
	return invoke(ctx, method, req, reply, conn, o...)
}

func (w *world) isRemoved(id string) bool {
	now := w.producersEvicted.Load()
	w.identities.mu.Lock()
	defer w.identities.mu.Unlock()
	since, ok := w.known[id]
	if !ok {
		w.known[id] = now
	}
	is := ok && since < now
	if is && w.reported < now {
		w.reported = now
		w.count(producersEvicted)
	}
	return is
}

// operator requests the adoption of the pair's record from both nodes until ctx ends. A pair that has its record
// rejects the request, and so does a node that would lose messages. If both nodes reject it, the operator restarts them
// in every other round.
func (w *world) operator(ctx context.Context) {
	for round := 1; ctx.Err() == nil; round++ {
		rebuilt := false
		for _, h := range w.hosts {
			resp, err := pb.NewAdminServiceClient(w.ConnTo(h.address)).AdoptRecord(ctx,
				&pb.AdoptRecordRequest{Confirm: true})
			if rebuilt = rebuilt || err == nil; err == nil {
				w.record("%s adopted the pair's record: %v", h.name, resp)
			} else if ctx.Err() == nil {
				w.record("%s does not adopt the pair's record: %v", h.name, err)
			}
		}
		for _, h := range w.hosts {
			if !rebuilt && round%2 == 0 && ctx.Err() == nil && h.stopForNow() {
				w.record("the operator restarts %s", h.name)
				h.restart()
			}
		}
		sleep(ctx, 2*time.Second)
	}
}

// heal removes the effects of all faults.
func (w *world) heal() {
	w.net.Heal()
	w.store.server.SetDown(false)
	for _, h := range w.hosts {
		w.store.outcome(h.name, swapNormal)
		w.store.stopResponding(h.name, false)
		w.store.notify(h.name, true)
		h.onDisk(func(d *disk) { d.delay, d.stalled, d.failSync, d.low = 0, false, false, false })
		h.restart()
	}
}

// rngOf creates the random source of the plan, which is generated before the simulation starts.
func rngOf(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 2)) }
