// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/client/admin"
	"github.com/lockstep-mq/lockstep/test/harness"
)

// The faults of a failover measurement.
const (
	FaultKill       = "kill"       // SIGKILL of the active
	FaultFreeze     = "freeze"     // SIGSTOP of the active, until the other node serves
	FaultCut        = "cut"        // cuts the active's links to the other node and to etcd, until the other node serves
	FaultSwitchover = "switchover" // planned
)

// FailoverOptions configures a failover measurement.
type FailoverOptions struct {
	Fault string
	Times int
	// Settle is the time in sync before each fault.
	Settle time.Duration
	// Coordinator is the name of the coordinator. It is only copied to the result.
	Coordinator string
}

const readyBound = time.Minute

// publisher publishes messages one by one, and records the time and the node of each acknowledgement.
type publisher struct {
	mu      sync.Mutex
	acks    []ack // since the last call of take
	arrived chan struct{}
}

type ack struct {
	at      time.Time
	address string // of the node that acknowledged
}

func (p *publisher) run(ctx context.Context, t Target, queue string) error {
	c := t.Client
	m := client.Message{Body: Body(512)}
	for ctx.Err() == nil {
		r, err := c.Publish(ctx, queue, m)
		if err != nil {
			if ctx.Err() != nil {
				return nil //nolint:nilerr // the measurement has ended
			}
			return err
		}
		p.mu.Lock()
		p.acks = append(p.acks, ack{time.Now(), t.Pair.BypassLink(r.Address)})
		p.mu.Unlock()
		select {
		case p.arrived <- struct{}{}:
		default:
		}
	}
	return nil
}

func (p *publisher) take() []ack {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := p.acks
	p.acks = nil
	return out
}

// next waits for an acknowledgement that is later than the given time and is sent by a node other than the excluded
// one. It returns the time of the acknowledgement, and discards all acknowledgements recorded so far.
func (p *publisher) next(ctx context.Context, after time.Time, excluded string) (time.Time, error) {
	for {
		for _, a := range p.take() {
			if a.at.After(after) && a.address != excluded {
				return a.at, nil
			}
		}
		select {
		case <-p.arrived:
		case <-ctx.Done():
			return time.Time{}, fmt.Errorf("no publish was acknowledged after the fault: %w", ctx.Err())
		}
	}
}

// Failover measures the interruption of a publisher that waits for each acknowledgement when the active fails. The
// interruption is the time from the fault to the next acknowledgement by the other node. For a planned switchover,
// it is the longest time between two acknowledgements.
func Failover(ctx context.Context, t Target, o FailoverOptions) (Result, error) {
	r := Result{
		Workload: "failover", Phase: o.Fault, Setup: t.Setup, Sync: t.Sync, SizeBytes: 512, Queues: 1,
		Producers: 1, Window: 1, Comment: o.Coordinator,
	}
	names := QueueNames(1)
	err := WithQueues(ctx, t.Client, names, func() error {
		runCtx, stop := context.WithCancel(ctx)
		defer stop()
		p := &publisher{arrived: make(chan struct{}, 1)}
		ended := make(chan error, 1)
		go func() { ended <- p.run(runCtx, t, names[0]) }()
		h, start := NewHistogram(), time.Now()
		for range o.Times {
			d, err := failOnce(ctx, t, p, o)
			if err != nil {
				return err
			}
			Record(h, d)
		}
		stop()
		if err := <-ended; err != nil {
			return err
		}
		r.Duration(time.Since(start), o.Times, h)
		r.Rate, r.MB = 0, 0 // not meaningful here
		return nil
	})
	return r, err
}

// failOnce waits until the pair is in sync, injects one fault, and returns the interruption. It reverts the fault, but
// does not wait until the pair is in sync again.
func failOnce(ctx context.Context, t Target, p *publisher, o FailoverOptions) (d time.Duration, err error) {
	limit, cancel := context.WithTimeout(ctx, readyBound+o.Settle)
	defer cancel()
	if err := t.Pair.WaitReady(limit, nil); err != nil {
		return 0, err
	}
	select {
	case <-time.After(o.Settle):
	case <-limit.Done():
		return 0, fmt.Errorf("wait before the fault: %w", limit.Err())
	}
	if _, err := p.next(limit, time.Now(), ""); err != nil {
		return 0, err
	}
	active, err := ActiveNode(limit, t)
	if err != nil {
		return 0, err
	}
	if o.Fault == FaultSwitchover {
		return switchOver(limit, t, p, active)
	}
	since := time.Now()
	undo, err := inject(t, active, o.Fault)
	if err != nil {
		return 0, err
	}
	at, err := p.next(limit, since, active.Address)
	return at.Sub(since), errors.Join(err, undo())
}

func inject(t Target, active *harness.Node, fault string) (undo func() error, err error) {
	switch fault {
	case FaultCut:
		t.Pair.Cut()
		t.Pair.CutFromEtcd(active)
		return func() error { t.Pair.Heal(); t.Pair.HealToEtcd(active); return nil }, nil
	case FaultFreeze:
		return active.Wake, active.Pause()
	default:
		return active.Start, active.Kill()
	}
}

// switchOver performs a switchover and returns the longest interruption around it.
func switchOver(ctx context.Context, t Target, p *publisher, active *harness.Node) (time.Duration, error) {
	node, err := admin.New(t.Client).Node(active.Address)
	if err != nil {
		return 0, err
	}
	p.take()
	before := time.Now()
	if _, err := node.Switchover(ctx, 0); err != nil {
		return 0, err
	}
	if err := waitAck(ctx, p, active.Address); err != nil {
		return 0, err
	}
	longest, last := time.Duration(0), before
	for _, a := range p.take() {
		longest, last = max(longest, a.at.Sub(last)), a.at
	}
	return longest, nil
}

// waitAck waits for an acknowledgement by a node other than the excluded one. Unlike next, it does not remove
// acknowledgements from the list.
func waitAck(ctx context.Context, p *publisher, excluded string) error {
	for {
		p.mu.Lock()
		found := slices.ContainsFunc(p.acks, func(a ack) bool { return a.address != excluded })
		p.mu.Unlock()
		if found {
			return nil
		}
		select {
		case <-p.arrived:
		case <-ctx.Done():
			return fmt.Errorf("no publish was acknowledged after the switchover: %w", ctx.Err())
		}
	}
}

// ActiveNode returns the active node of the pair in t.
func ActiveNode(ctx context.Context, t Target) (*harness.Node, error) {
	for _, n := range t.Pair.Nodes {
		s, err := n.Status(ctx)
		if err == nil && s.GetNode().GetActive() {
			return n, nil
		}
	}
	return nil, errors.New("no node is active")
}
