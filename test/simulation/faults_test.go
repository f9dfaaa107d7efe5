// SPDX-License-Identifier: Apache-2.0

//go:build unix

package simulation

import (
	"context"
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

// breakIt executes the plan and returns when all of its faults have ended; heal removes their lasting effects. It
// returns an error if the pair was not in sync again in time, between faults that run one by one.
func (w *world) breakIt(ctx context.Context, plan []fault) error {
	began := time.Now()
	var faults sync.WaitGroup
	defer faults.Wait()
	for _, f := range plan {
		sleep(ctx, f.At-time.Since(began))
		begin, end := w.fault(ctx, f, w.find(ctx, f.Whom))
		if begin == nil {
			continue
		}
		w.note("%v of %v for %v", f.Kind, f.Whom, f.For)
		if begin() {
			w.count(f.Kind)
		}
		if end == nil {
			end = func() {}
		}
		faults.Go(func() {
			sleep(ctx, f.For)
			end()
			w.note("end of %v of %v", f.Kind, f.Whom)
		})
		if w.options.Sync != always {
			faults.Wait()
			w.heal()
			if err := w.waitWhole(ctx); err != nil {
				return fmt.Errorf("after %v of %v: %w", f.Kind, f.Whom, err)
			}
		}
	}
	return nil
}

// waitWhole waits for a pair in sync without a running plan. With sync=off, a power loss of one node while a plan
// restarts the other one loses acknowledged messages, as documented.
func (w *world) waitWhole(ctx context.Context) error {
	if err := w.waitInSync(ctx); err != nil || !w.upkeepAsked {
		return err
	}
	if err := w.waitUpkept(ctx); err != nil {
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

// find returns the target host of a fault, and the other one.
func (w *world) find(ctx context.Context, who whom) [2]*host {
	a, b := w.hosts[0], w.hosts[1]
	switch active := w.serving(ctx); {
	case who == nodeB, who == theActive && active == b, who == theStandby && active == a:
		return [2]*host{b, a}
	default:
		return [2]*host{a, b}
	}
}

// fault returns the functions that start and end a fault. begin reports whether it took effect immediately; a fault
// with a later effect counts itself. A nil end: no duration.
func (w *world) fault(ctx context.Context, f fault, hosts [2]*host) (begin func() bool, end func()) {
	h, other := hosts[0], hosts[1]
	switch f.Kind {
	case kill:
		return w.down(func() bool { return h.kill(false) }, h.restart)
	case powerLoss:
		return w.down(func() bool { return h.kill(true) }, h.restart)
	case powerLossOfBoth:
		apart := time.Duration(f.Dice % uint64(50*time.Millisecond))
		if f.Dice%3 == 0 {
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
	case upkeep:
		return later(func() { w.startPlan(ctx, h, f.Dice) }), nil
	case recordLost:
		return func() bool {
			w.recordLost = true
			w.authority.server.Forget()
			return true
		}, nil
	case swapUnsettled:
		fate := swapReplyLost + swapFate(f.Dice%3)
		return later(func() { w.authority.fate(h.name, fate) }), nil
	case slowDisk, stalledDisk, failedSync, lowDisk:
		return w.diskFault(f, h)
	case fullQueue:
		return later(func() { w.limitQueues(ctx, 1) }), func() { w.limitQueues(ctx, 0) }
	case forgotten:
		return later(func() { w.forgotten.Add(1) }), nil
	case coordinatorSilent, coordinatorDown:
		return w.coordinatorFault(ctx, f, h)
	case frozen:
		return func() bool {
				w.setAlone(h, true)
				w.authority.setSilent(h.name, true)
				return h.onDisk(func(d *disk) { d.stalled = true })
			}, func() {
				h.onDisk(func(d *disk) { d.stalled = false })
				w.authority.setSilent(h.name, false)
				w.setAlone(h, false)
			}
	case isolated:
		return func() bool {
				if f.Dice%2 == 0 { // the request in flight may, or may not, have been executed
					w.authority.fate(h.name, swapReplyLost+swapFate(f.Dice/2%3))
				}
				w.setApart(h, other, true)
				w.authority.setSilent(h.name, true)
				return h.alive()
			}, func() {
				w.setApart(h, other, false)
				w.authority.setSilent(h.name, false)
			}
	default:
		return w.linkFault(f, h, other)
	}
}

// down is a fault that ends a process. It has no effect if none runs.
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

// later is a fault that takes effect, if at all, only after begin.
func later(begin func()) func() bool {
	return func() bool {
		begin()
		return false
	}
}

// diskFault returns a fault that takes effect, and is counted, at the next use of the disk.
func (w *world) diskFault(f fault, h *host) (begin func() bool, end func()) {
	set := func(change func(*disk)) func() { return func() { h.onDisk(change) } }
	struck := func(d *disk) { d.struck = func() { w.count(f.Kind) } }
	switch f.Kind {
	case slowDisk:
		return later(set(func(d *disk) {
			struck(d)
			d.delay = time.Millisecond + time.Duration(f.Dice%uint64(150*time.Millisecond))
		})), set(func(d *disk) { d.delay = 0 })
	case stalledDisk:
		return later(set(func(d *disk) {
			struck(d)
			d.stalled = true
		})), set(func(d *disk) { d.stalled = false })
	case lowDisk:
		return later(set(func(d *disk) {
			d.full = func() { w.count(f.Kind) }
			d.low = true
		})), set(func(d *disk) { d.low = false })
	default:
		return later(set(func(d *disk) {
			struck(d)
			d.failSync = true
		})), nil
	}
}

// coordinatorFault: a node detects a silent coordinator immediately or only after a while.
func (w *world) coordinatorFault(ctx context.Context, f fault, h *host) (begin func() bool, end func()) {
	if f.Kind == coordinatorDown {
		return func() bool {
			w.authority.server.SetDown(true)
			return true
		}, func() { w.authority.server.SetDown(false) }
	}
	finds := time.Duration(f.Dice % uint64(2*time.Second))
	ctx, cancel := context.WithCancel(ctx)
	var finding sync.WaitGroup
	return func() bool {
			w.authority.setSilent(h.name, true)
			finding.Go(func() {
				if sleep(ctx, finds); ctx.Err() == nil {
					w.authority.notice(h.name, false)
				}
			})
			return h.alive()
		}, func() {
			cancel()
			finding.Wait()
			w.authority.setSilent(h.name, false)
			w.authority.notice(h.name, true)
		}
}

func (w *world) linkFault(f fault, h, other *host) (begin func() bool, end func()) {
	alive := func() bool { return h.alive() && other.alive() }
	switch f.Kind {
	case clientCut, clientOneWay, clientReset:
		alive = h.alive
	}
	strike := func(f func()) func() bool {
		return func() bool {
			f()
			return alive()
		}
	}
	cut := func(ways ...simnet.Way) (begin func() bool, end func()) {
		return strike(func() { w.setCut(true, ways...) }), func() { w.setCut(false, ways...) }
	}
	switch f.Kind {
	case partition:
		return cut(simnet.Both(h.name, other.name)...)
	case oneWay:
		return cut(simnet.Way{From: h.name, To: other.name})
	case clientCut:
		return cut(simnet.Both(h.name, clientHost)...)
	case clientOneWay:
		return cut(simnet.Both(h.name, clientHost)[f.Dice%2])
	case reset:
		return strike(func() { w.net.ResetLink(h.name, other.name) }), nil
	case clientReset:
		return strike(func() { w.net.ResetLink(h.name, clientHost) }), nil
	default: // slowLink
		slow := func(delay, jitter time.Duration) func() {
			return func() {
				for _, x := range simnet.Both(h.name, other.name) {
					w.net.Change(x, func(l *simnet.Link) { l.Delay, l.Jitter = delay, jitter })
				}
			}
		}
		most := time.Duration(f.Dice % uint64(400*time.Millisecond))
		return strike(slow(most/2, most/2)), slow(normalDelay, normalJitter)
	}
}

// setApart cuts the hosts off from each other, or undoes that.
func (w *world) setApart(a, b *host, apart bool) { w.setCut(apart, simnet.Both(a.name, b.name)...) }

// setAlone cuts a host off from all others, or undoes that.
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
			w.note("no switchover: %v", err)
			return
		}
		w.count(switchover)
		w.note("switchover done: %v", resp)
	})
}

// startPlan starts a maintenance plan. The pair continues it after any fault, and recovered waits for its end.
func (w *world) startPlan(ctx context.Context, h *host, dice uint64) {
	kinds := []pb.PlanKind{pb.PlanKind_PLAN_KIND_RESIZE, pb.PlanKind_PLAN_KIND_COMPACT, pb.PlanKind_PLAN_KIND_RESTART}
	req := &pb.StartPlanRequest{Kind: kinds[dice%uint64(len(kinds))]}
	if req.Kind == pb.PlanKind_PLAN_KIND_RESIZE {
		req.PageSize = 2 << 10 << (dice / 3 % 4)
	}
	w.upkeepAsked = true
	w.running.Go(func() {
		ctx, cancel := context.WithTimeout(ctx, switchoverLimit)
		defer cancel()
		if _, err := pb.NewMaintenanceServiceClient(w.ConnTo(h.address)).StartPlan(ctx, req); err != nil {
			w.note("no plan %v: %v", req, err)
			return
		}
		w.count(upkeep)
		w.note("plan started: %v", req)
	})
}

// limitQueues sets the message limit of the applications' queues; 0: no limit.
func (w *world) limitQueues(ctx context.Context, messages uint64) {
	w.running.Go(func() {
		ctx, cancel := context.WithTimeout(ctx, switchoverLimit)
		defer cancel()
		h := w.serving(ctx)
		if h == nil {
			return
		}
		for _, queue := range w.refusable {
			_, err := pb.NewQueueServiceClient(w.ConnTo(h.address)).AlterQueue(ctx, &pb.AlterQueueRequest{
				Name: queue, Config: &pb.QueueConfig{MaxMessages: messages},
			})
			if err != nil {
				w.note("the limit of %s is not altered: %v", queue, err)
				return
			}
		}
		w.note("queues may hold %d messages (0: any number)", messages)
		if messages > 0 {
			w.count(fullQueue)
		}
	})
}

// identities marks the transaction producers that existed when the fault took effect and that nodes have forgotten.
type identities struct {
	forgotten atomic.Uint64 // how often nodes have forgotten all producers

	mu    sync.Mutex // guards all fields below
	known map[string]uint64
	told  uint64
}

// forget is an interceptor of the clients' calls. A node evicts a producer only after 100,000 others, which a
// simulation does not reach. So the interceptor returns that error instead, for every commit and queue change under an
// identity older than the fault.
func (w *world) forget(
	ctx context.Context, method string, req, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker,
	o ...grpc.CallOption,
) error {
	if c, ok := req.(interface{ GetProducer() *pb.Producer }); ok && w.isForgotten(c.GetProducer().GetId()) {
		st, err := status.New(codes.OutOfRange, "simulated: producer has expired").
			WithDetails(&errdetails.ErrorInfo{Reason: "PRODUCER_UNKNOWN", Domain: "lockstep.v1"})
		if err != nil {
			return err
		}
		return st.Err()
	}
	return invoke(ctx, method, req, reply, conn, o...)
}

func (w *world) isForgotten(id string) bool {
	now := w.forgotten.Load()
	w.identities.mu.Lock()
	defer w.identities.mu.Unlock()
	since, ok := w.known[id]
	if !ok {
		w.known[id] = now
	}
	is := ok && since < now
	if is && w.told < now {
		w.told = now
		w.count(forgotten)
	}
	return is
}

// operator adopts the pair's record until the pair is in sync, on whichever node can do it without a loss. A pair
// that has its record rejects the request, and so does the wrong node. If both reject it, the remedy is a restart.
func (w *world) operator(ctx context.Context) {
	for round := 1; ctx.Err() == nil; round++ {
		adopted := false
		for _, h := range w.hosts {
			resp, err := pb.NewAdminServiceClient(w.ConnTo(h.address)).AdoptRecord(ctx,
				&pb.AdoptRecordRequest{Confirm: true})
			if adopted = adopted || err == nil; err == nil {
				w.note("%s adopted the pair: %v", h.name, resp)
			} else if ctx.Err() == nil {
				w.note("%s does not adopt the pair: %v", h.name, err)
			}
		}
		for _, h := range w.hosts {
			if !adopted && round%2 == 0 && ctx.Err() == nil && h.stopForNow() {
				w.note("the operator restarts %s", h.name)
				h.restart()
			}
		}
		sleep(ctx, 2*time.Second)
	}
}

// heal removes the effects of all faults.
func (w *world) heal() {
	w.net.Heal()
	w.authority.server.SetDown(false)
	for _, h := range w.hosts {
		w.authority.fate(h.name, swapNormal)
		w.authority.setSilent(h.name, false)
		w.authority.notice(h.name, true)
		h.onDisk(func(d *disk) { d.delay, d.stalled, d.failSync, d.low = 0, false, false, false })
		h.restart()
	}
}

// rngOf creates the source of the plan, which is generated before the simulation starts.
func rngOf(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 2)) }
