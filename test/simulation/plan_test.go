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

// kind is the kind of a fault.
type kind uint8

// The kinds of faults. A fault with a duration ends automatically.
const (
	// a process is killed, and restarted after the duration; its writes stay in the page cache
	kill                    kind = iota
	powerLoss                    // a host loses power and its unsynced data; powered on after the duration
	powerLossOfBoth              // both hosts lose power, at most 50 ms apart
	stopped                      // a node is stopped, and restarted after the duration
	frozen                       // a process has no network, disk and coordinator for the duration
	isolated                     // a node reaches the clients, but neither the other node nor the coordinator
	partition                    // the nodes do not reach each other
	oneWay                       // traffic in one direction between the nodes is dropped
	reset                        // all connections between the nodes break
	slowLink                     // messages between the nodes take up to 400 ms
	clientCut                    // the clients and a node do not reach each other
	clientOneWay                 // traffic in one direction between the clients and a node is dropped
	clientReset                  // all client connections to a node break
	coordinatorUnresponsive      // a node and the coordinator do not reach each other
	coordinatorDown              // the coordinator responds to no node
	swapUnsettled                // a node does not receive the outcome of its next swap
	slowDisk                     // writes and syncs of a node's log take up to 150 ms
	stalledDisk                  // writes and syncs of a node's log block for the duration
	failedSync                   // a node's next fsync fails
	switchover                   // an operator hands over the active role
	maintenance                  // both nodes are resized, compacted or restarted one by one
	lowDisk                      // a node's disk is nearly full
	fullQueue                    // the applications' queues are at their limit
	pausedQueue                  // publishing, delivery or both are paused on the applications' queues
	producersEvicted             // nodes have evicted all transaction producers
	recordLost                   // the coordinator loses the cluster record; an operator later rebuilds it
	kinds
)

var kindNames = [kinds]string{
	"kill", "power-loss", "power-loss-of-both", "stop", "freeze", "isolated", "partition", "one-way", "reset",
	"slow-link", "client-cut",
	"client-one-way", "client-reset", "coordinator-silent", "coordinator-down", "swap-unsettled", "slow-disk",
	"stalled-disk", "failed-sync",
	"switchover", "maintenance", "low-disk", "full-queue", "paused-queue", "producers-evicted", "record-lost",
}

func (k kind) String() string { return kindNames[k] }

// target selects the node that a fault affects.
type target uint8

const (
	nodeA target = iota
	nodeB
	activeNode  // the node that serves when the fault starts
	standbyNode // the other node
)

func (w target) String() string { return [...]string{"a", "b", "active", "standby"}[w] }

type fault struct {
	At     time.Duration // since the pair was first in sync
	Kind   kind
	Target target
	For    time.Duration
	Rand   uint64 // source of further random choices
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
		if i > 0 && rng.IntN(3) == 0 { // many bugs require two faults within milliseconds
			f.At = plan[rng.IntN(i)].At + time.Duration(rng.Int64N(int64(50*time.Millisecond)))
		}
		switch rng.IntN(3) { // well below the timeouts, close to them, and above them
		case 0:
			f.For = time.Duration(rng.Int64N(int64(300 * time.Millisecond)))
		case 1:
			f.For = time.Duration(rng.Int64N(int64(1500 * time.Millisecond)))
		default:
			f.For = time.Duration(rng.Int64N(int64(6 * time.Second)))
		}
		f.At, f.For = f.At.Round(time.Microsecond), f.For.Round(time.Microsecond)
		plan[i] = f
		// A power loss soon after a failed sync shows whether the node treats unwritten data as durable.
		if f.Kind == failedSync && rng.IntN(2) == 0 {
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
		return powerLoss // the fault that finds the most bugs in these modes
	}
	for {
		k := kind(rng.IntN(int(kinds)))
		switch {
		case k == recordLost && rng.IntN(3) > 0: // few faults have an effect after this one
		// may lose acknowledged messages
		case o.Sync != always && (k == powerLossOfBoth || k == failedSync || k == recordLost):
		default:
			return k
		}
	}
}
