// SPDX-License-Identifier: Apache-2.0

//go:build unix

package simulation

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"
)

// kind of a fault.
type kind uint8

// The kinds of faults. Those with a duration end by themselves.
const (
	// a process is killed; what it wrote stays in the page cache. Started again after the duration
	kill              kind = iota
	powerLoss              // a host loses power, and what was not synced; on again after the duration
	powerLossOfBoth        // both do, at most 50 ms apart
	stopped                // a node is asked to end, and does so in order; started again after the duration
	frozen                 // a process does nothing for a while: no traffic, no disk, no coordinator
	isolated               // a node hears neither the other one nor the coordinator, and the clients hear it
	partition              // the nodes do not hear each other
	oneWay                 // one of them is not heard by the other one
	reset                  // all connections between the nodes break
	slowLink               // messages between the nodes take up to 400 ms
	clientCut              // clients and a node do not hear each other
	clientOneWay           // one of the two directions
	clientReset            // all connections of clients to a node break
	coordinatorSilent      // a node and the coordinator do not hear each other
	coordinatorDown        // the coordinator answers no node
	swapUnsettled          // a node's next swap has an outcome that it does not learn
	slowDisk               // writes and syncs of a node's log take up to 150 ms
	stalledDisk            // they do not come back for the duration
	failedSync             // a node's next fsync fails
	switchover             // an operator hands the active role over
	upkeep                 // both nodes are resized, compacted or restarted, one after the other
	lowDisk                // a node's disk has hardly room left
	fullQueue              // the queues of the applications may hold no more
	forgotten              // nodes do not know the producers of transactions any more
	recordLost             // the coordinator loses the pair's record; an operator has it adopted in the end
	kinds
)

var kindNames = [kinds]string{
	"kill", "power-loss", "power-loss-of-both", "stop", "freeze", "isolated", "partition", "one-way", "reset",
	"slow-link", "client-cut",
	"client-one-way", "client-reset", "coordinator-silent", "coordinator-down", "swap-unsettled", "slow-disk",
	"stalled-disk", "failed-sync",
	"switchover", "upkeep", "low-disk", "full-queue", "forgotten", "record-lost",
}

func (k kind) String() string { return kindNames[k] }

// whom a fault concerns.
type whom uint8

const (
	nodeA whom = iota
	nodeB
	theActive  // the node that serves when the fault begins
	theStandby // the other one
)

func (w whom) String() string { return [...]string{"a", "b", "active", "standby"}[w] }

// fault is one entry of the plan.
type fault struct {
	At   time.Duration // from the moment that the pair is in sync
	Kind kind
	Whom whom
	For  time.Duration
	Dice uint64 // what else there is to decide
}

func (f fault) String() string {
	return fmt.Sprintf("%v of %v at %v for %v (%d)", f.Kind, f.Whom, f.At, f.For, f.Dice)
}

// drawPlan draws the faults of a simulation. All of it follows from the seed; what the nodes make of it depends on the
// scheduler, too.
func drawPlan(rng *rand.Rand, o options) []fault {
	plan := make([]fault, 2+rng.IntN(7))
	for i := range len(plan) {
		f := fault{
			At: time.Duration(rng.Int64N(int64(o.Length))), Kind: drawKind(rng, o), Whom: whom(rng.IntN(4)),
			Dice: rng.Uint64N(1 << 32),
		}
		if i > 0 && rng.IntN(3) == 0 { // many bugs want two faults at nearly the same time
			f.At = plan[rng.IntN(i)].At + time.Duration(rng.Int64N(int64(50*time.Millisecond)))
		}
		switch rng.IntN(3) { // well below the timeouts, about them, and beyond
		case 0:
			f.For = time.Duration(rng.Int64N(int64(300 * time.Millisecond)))
		case 1:
			f.For = time.Duration(rng.Int64N(int64(1500 * time.Millisecond)))
		default:
			f.For = time.Duration(rng.Int64N(int64(6 * time.Second)))
		}
		f.At, f.For = f.At.Round(time.Microsecond), f.For.Round(time.Microsecond)
		plan[i] = f
		if f.Kind == failedSync && rng.IntN(2) == 0 { // and does not get better: is what was not written believed?
			plan = append(plan, fault{
				At: f.At + time.Duration(rng.Int64N(int64(time.Second))), Kind: powerLossOfBoth, Whom: f.Whom,
				For: f.For, Dice: f.Dice,
			})
		}
	}
	slices.SortStableFunc(plan, func(a, b fault) int { return cmp.Compare(a.At, b.At) })
	return plan
}

func drawKind(rng *rand.Rand, o options) kind {
	if o.Sync != always && rng.IntN(2) == 0 {
		return powerLoss // what there is to find with these modes
	}
	for {
		k := kind(rng.IntN(int(kinds)))
		switch {
		case k == recordLost && rng.IntN(3) > 0: // nothing much can happen after it
		// may lose what was acknowledged
		case o.Sync != always && (k == powerLossOfBoth || k == failedSync || k == recordLost):
		default:
			return k
		}
	}
}
