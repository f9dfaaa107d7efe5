// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	"github.com/lockstep-mq/lockstep/cmd/internal/output"
	"github.com/lockstep-mq/lockstep/fleet/balance"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// drainInterval is the interval at which --wait checks the queues of a drained pair.
const drainInterval = 2 * time.Second

// settleAttempts is the maximum number of checks whether the directory contains the moves that have ended.
const settleAttempts = 25

var errQueuesRemain = cli.WithHint(errors.New("queues remain on the pair"),
	"the command again when the reasons are resolved, or `--wait` to try again until the pair has no queues")

type drainFlags struct {
	move, wait, dryRun, yes bool
	to                      []string
}

// drainer moves the queues of a pair to other pairs.
type drainer struct {
	drainFlags

	env  *cli.Env
	c    *client.Client
	pair string

	out   drained
	plan  balance.Plan
	moved map[string]bool // queues that were moved
	// failed contains the groups that could not be moved, by their first queue. It is cleared before each retry.
	failed map[string]balance.Left
	// remaining is the number of queues of the pair, and moving the number of moves from the pair that have not ended.
	remaining, moving uint64
}

func (d *drainer) run(ctx context.Context) error {
	d.moved, d.failed = map[string]bool{}, map[string]balance.Left{}
	if !d.move {
		if err := d.setDraining(ctx); err != nil {
			return err
		}
		return d.await(ctx)
	}
	if err := d.replan(ctx); err != nil {
		return err
	}
	d.out = drained{Pair: d.pair, Warnings: []string{}, Queues: d.remaining}
	d.out.Moves, d.out.Left = plannedMoves(d.plan.Moves), leftGroups(d.plan.Left)
	if err := errors.Join(printPlanned(d.env, d.out.Moves), printLeft(d.env, d.out.Left)); err != nil {
		return err
	}
	if d.dryRun {
		return d.env.Print.Result(d.out, "%s; no queues moved: --dry-run", output.Plural(len(d.out.Moves), "move"))
	}
	if err := d.env.ConfirmPlan(ctx, d.yes, &d.out, "Drain pair %s, and execute %s?", d.pair,
		output.Plural(len(d.out.Moves), "move")); err != nil {
		return err
	}
	if err := d.setDraining(ctx); err != nil {
		return err
	}
	return d.evacuate(ctx)
}

func (d *drainer) setDraining(ctx context.Context) error {
	err := change(ctx, d.env, func(ctx context.Context, a answer) error {
		if err := a.node.SetPairState(ctx, d.pair, pb.PairState_PAIR_STATE_DRAINING); err != nil {
			return err
		}
		now := newDrained(a.fleet, d.pair, pb.PairState_PAIR_STATE_DRAINING)
		now.warn(a.fleet)
		d.out.Pair, d.out.State, d.out.Queues, d.out.Warnings = d.pair, now.State, now.Queues, now.Warnings
		return nil
	})
	if err != nil {
		return err
	}
	text := fmt.Sprintf("pair %s is draining: new queues are created on other pairs, except in its placement groups",
		d.pair)
	for _, w := range d.out.Warnings {
		text += "\nWARNING: " + w
	}
	return d.env.Print.Sentence("%s", text)
}

// replan computes the plan for the queues that remain.
func (d *drainer) replan(ctx context.Context) error {
	state, failed, err := survey(ctx, d.env, d.c)
	if err != nil {
		return err
	}
	if err := d.checkPairs(state); err != nil {
		return err
	}
	if err := failed[d.pair]; err != nil {
		return err
	}
	d.moving = 0
	remaining := map[string]bool{}
	for _, m := range state.Moves {
		if m.From == d.pair {
			d.moving++
			for _, name := range m.Queues { // the caller may have no right on them
				remaining[name] = true
			}
		}
	}
	for _, q := range state.Queues {
		if q.Pair == d.pair {
			remaining[q.Name] = true
		}
	}
	d.remaining = uint64(len(remaining))
	d.plan = balance.Drain(state, d.pair, d.to)
	return nil
}

// checkPairs verifies that the named pairs are registered, and that the drained pair is live.
func (d *drainer) checkPairs(state *balance.Fleet) error {
	for _, name := range append([]string{d.pair}, d.to...) {
		at := slices.IndexFunc(state.Pairs, func(p balance.Pair) bool { return p.Name == name })
		switch {
		case at < 0:
			return notRegistered(name)
		case name == d.pair && slices.Contains(d.to, d.pair):
			return cli.Usage("--to contains pair %s, which is drained", name)
		case name == d.pair && !state.Pairs[at].Live:
			return cli.WithHint(fmt.Errorf("pair %s is not live: its queues cannot be moved", name),
				"`lockstep fleet status` to show the pairs")
		}
	}
	return nil
}

// evacuate moves queues until none remain or, without --wait, until no further queue can be moved.
func (d *drainer) evacuate(ctx context.Context) error {
	waiting := false
	for {
		if err := d.settle(ctx); err != nil {
			return err
		}
		if d.remaining == 0 {
			d.out.Queues = 0
			return d.finish()
		}
		progress, err := d.execute(ctx)
		if err != nil {
			return err
		}
		if progress {
			continue
		}
		if !d.wait && d.moving == 0 {
			return d.finish()
		}
		if d.moving > 0 && !waiting {
			waiting = true
			if err := d.env.Print.Sentence("waiting for %s in progress (lockstep fleet moves)",
				output.Plural(d.moving, "move")); err != nil {
				return err
			}
		}
		clear(d.failed)
		if err := pause(ctx, drainInterval); err != nil {
			return err
		}
	}
}

// settle computes the plan when the copy of the directory contains the moves that have ended. After settleAttempts, it
// assumes that the queues that the plan still contains were moved back.
func (d *drainer) settle(ctx context.Context) error {
	for range settleAttempts {
		if err := d.replan(ctx); err != nil {
			return err
		}
		pending := false
		for _, m := range d.plan.Moves {
			pending = pending || slices.ContainsFunc(m.Queues(), func(name string) bool { return d.moved[name] })
		}
		if !pending {
			return nil
		}
		if err := pause(ctx, waitInterval); err != nil {
			return err
		}
	}
	clear(d.moved) // they were moved back
	return nil
}

// execute executes the plan. progress reports whether queues were moved.
func (d *drainer) execute(ctx context.Context) (progress bool, _ error) {
	var moves []balance.Move
	for _, m := range d.plan.Moves {
		m.Groups = slices.DeleteFunc(slices.Clone(m.Groups), func(g []string) bool {
			_, failed := d.failed[g[0]]
			return failed
		})
		if len(m.Groups) > 0 {
			moves = append(moves, m)
		}
	}
	e := executor{env: d.env, c: d.c, show: func(i moveInfo) error { return d.env.Print.Sentence("%s", i.text()) }}
	results, left, err := e.run(ctx, moves)
	d.out.Results = append(d.out.Results, results...)
	for _, l := range left {
		d.failed[l.Queues[0]] = l
	}
	for _, r := range results {
		if r.Phase == "done" {
			progress = true
			for _, name := range r.Queues {
				d.moved[name] = true
			}
		}
	}
	return progress, err
}

// finish prints the result. It returns errQueuesRemain if queues remain.
func (d *drainer) finish() error {
	d.out.Queues = d.remaining
	if d.remaining == 0 {
		d.out.Left = nil
		return d.env.Print.Result(d.out, "the pair has no queues: lockstep fleet leave removes it from the fleet")
	}
	left := slices.Clone(d.plan.Left)
	for _, l := range d.failed {
		left = append(left, l)
	}
	slices.SortFunc(left, func(a, b balance.Left) int { return strings.Compare(a.Queues[0], b.Queues[0]) })
	d.out.Left = leftGroups(left)
	return errors.Join(d.env.Print.Object(d.out), printLeft(d.env, d.out.Left),
		fmt.Errorf("%w: %s", errQueuesRemain, remain(d.remaining)))
}

// await waits until the pair has no queues, and prints the result.
func (d *drainer) await(ctx context.Context) error {
	for {
		answers, err := responding(ctx, d.env, d.c)
		if err != nil && !unreachable(err) {
			return err
		}
		if err == nil && answers[0].current() {
			if now := newDrained(answers[0].fleet, d.pair, pb.PairState_PAIR_STATE_DRAINING); now.Queues == 0 {
				d.out.Queues = 0
				return d.finish()
			}
		}
		if err := pause(ctx, drainInterval); err != nil {
			return err
		}
	}
}

// pause waits until a time has passed, or ctx ends.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
