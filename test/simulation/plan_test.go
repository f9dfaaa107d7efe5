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

// The kinds of faults. Those with a duration end automatically.
const (
	// a process is killed; its writes stay in the page cache. Restarted after the duration
	kill                    kind = iota
	powerLoss                    // a host loses power and unsynced data; on again after the duration
	powerLossOfBoth              // both do, at most 50 ms apart
	stopped                      // a node is shut down in order; restarted after the duration
	frozen                       // a process is inactive for a while: no traffic, no disk, no coordinator
	isolated                     // a node reaches neither the other one nor the coordinator, but the clients
	partition                    // the nodes do not reach each other
	oneWay                       // traffic in one direction between the nodes is dropped
	reset                        // all connections between the nodes break
	slowLink                     // messages between the nodes take up to 400 ms
	clientCut                    // clients and a node do not reach each other
	clientOneWay                 // one of the two directions
	clientReset                  // all connections of clients to a node break
	coordinatorUnresponsive      // a node and the coordinator do not reach each other
	coordinatorDown              // the coordinator responds to no node
	swapUnsettled                // the outcome of a node's next swap is withheld from it
	slowDisk                     // writes and syncs of a node's log take up to 150 ms
	stalledDisk                  // they hang for the duration
	failedSync                   // a node's next fsync fails
	switchover                   // an operator hands over the active role
	maintenance                  // both nodes are resized, compacted or restarted in turn
	lowDisk                      // a node's disk is nearly full
	fullQueue                    // the queues of the applications are at their limit
	pausedQueue                  // they are paused, in both directions or in one
	removed                      // nodes have evicted the producers of transactions
	recordLost                   // the coordinator loses the cluster record; an operator finally adopts the pair
	kinds
)

var kindNames = [kinds]string{
	"kill", "power-loss", "power-loss-of-both", "stop", "freeze", "isolated", "partition", "one-way", "reset",
	"slow-link", "client-cut",
	"client-one-way", "client-reset", "coordinator-silent", "coordinator-down", "swap-unsettled", "slow-disk",
	"stalled-disk", "failed-sync",
	"switchover", "upkeep", "low-disk", "full-queue", "paused-queue", "forgotten", "record-lost",
}

func (k kind) String() string { return kindNames[k] }

// target is the target of a fault.
type target uint8

const (
	nodeA target = iota
	nodeB
	activeNode  // the node that serves when the fault starts
	standbyNode // the other one
)

func (w target) String() string { return [...]string{"a", "b", "active", "standby"}[w] }

type fault struct {
	At     time.Duration // since the pair is in sync
	Kind   kind
	Target target
	For    time.Duration
	Rand   uint64 // further random choices
}

func (f fault) String() string {
	return fmt.Sprintf("%v of %v at %v for %v (%d)", f.Kind, f.Target, f.At, f.For, f.Rand)
}

// drawPlan generates the faults of a simulation from the seed. Their effects also depend on the scheduler.
func drawPlan(rng *rand.Rand, o options) []fault {
	plan := make([]fault, 2+rng.IntN(7))
	for i := range len(plan) {
		f := fault{
			At: time.Duration(rng.Int64N(int64(o.Length))), Kind: drawKind(rng, o), Target: target(rng.IntN(4)),
			Rand: rng.Uint64N(1 << 32),
		}
		if i > 0 && rng.IntN(3) == 0 { // many bugs require two faults at nearly the same time
			f.At = plan[rng.IntN(i)].At + time.Duration(rng.Int64N(int64(50*time.Millisecond)))
		}
		switch rng.IntN(3) { // well below the timeouts, close to them, and beyond
		case 0:
			f.For = time.Duration(rng.Int64N(int64(300 * time.Millisecond)))
		case 1:
			f.For = time.Duration(rng.Int64N(int64(1500 * time.Millisecond)))
		default:
			f.For = time.Duration(rng.Int64N(int64(6 * time.Second)))
		}
		f.At, f.For = f.At.Round(time.Microsecond), f.For.Round(time.Microsecond)
		plan[i] = f
		if f.Kind == failedSync && rng.IntN(2) == 0 { // and continues to fail: is unwritten data treated as durable?
			plan = append(plan, fault{
				At: f.At + time.Duration(rng.Int64N(int64(time.Second))), Kind: powerLossOfBoth, Target: f.Target,
				For: f.For, Rand: f.Rand,
			})
		}
	}
	slices.SortStableFunc(plan, func(a, b fault) int { return cmp.Compare(a.At, b.At) })
	return plan
}

func drawKind(rng *rand.Rand, o options) kind {
	if o.Sync != always && rng.IntN(2) == 0 {
		return powerLoss // the most productive fault with these modes
	}
	for {
		k := kind(rng.IntN(int(kinds)))
		switch {
		case k == recordLost && rng.IntN(3) > 0: // few faults have an effect after it
		// may lose acknowledged messages
		case o.Sync != always && (k == powerLossOfBoth || k == failedSync || k == recordLost):
		default:
			return k
		}
	}
}
