// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"os"
	"runtime/debug"
	"runtime/metrics"
	"time"

	"github.com/lockstep-mq/lockstep/replication"
	"github.com/lockstep-mq/lockstep/store"
)

const (
	// memoryBesides is what a process takes at most besides what the store may have: stacks, connections, requests
	// under way. Of a small budget it is a part.
	memoryBesides = 64 << 20
	// memoryTick is how often LimitMemory looks at what is in use.
	memoryTick = 2 * time.Second
	// memorySlack is how much more than what is in use the collector may always let lie, in percent: a limit close to
	// what is in use would have it run all the time.
	memorySlack = 25
)

// StoreMemory is how much of memory.budget is the store's. The rest is for requests and deliveries under way, and for
// what the collector has not yet collected.
func StoreMemory(budgetBytes int64) int64 { return max(budgetBytes/2, store.MinMemoryBudget) }

// LimitMemory keeps the process within memory.budget until ctx ends, as far as that can be: near it, garbage is
// collected as often as need be, instead of only when the heap has doubled. It is cheap, since most of the heap is
// message bytes, which the collector does not look into. A store that needs more, for its queues and producers, gets
// it: the limit follows what is in use. GOMEMLIMIT in the environment is stronger. It is for a process that is a node
// and nothing else.
func LimitMemory(ctx context.Context, budgetBytes int64) {
	if os.Getenv("GOMEMLIMIT") != "" {
		return
	}
	before := debug.SetMemoryLimit(memoryLimit(budgetBytes, 0))
	defer debug.SetMemoryLimit(before)
	tick := time.NewTicker(memoryTick)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			debug.SetMemoryLimit(memoryLimit(budgetBytes, heapInUse()))
		}
	}
}

// memoryLimit is the limit for what is in use now.
func memoryLimit(budgetBytes, usedBytes int64) int64 {
	return max(StoreMemory(budgetBytes), usedBytes+usedBytes/100*memorySlack) + min(memoryBesides, budgetBytes/4)
}

// tailMemory is how much of the newest log is kept in memory for the standby.
func tailMemory(budgetBytes int64) int {
	return int(min(replication.DefaultTailBytes, max(budgetBytes/16, 1<<20)))
}

// heapInUse is what the last collection found to be in use.
func heapInUse() int64 {
	sample := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	metrics.Read(sample)
	if sample[0].Value.Kind() != metrics.KindUint64 {
		return 0
	}
	return int64(sample[0].Value.Uint64())
}

// memoryTaken is what the Go runtime has from the system and not given back. Unlike what the system says of the process
// it does not count files that are mapped.
func memoryTaken() uint64 {
	samples := []metrics.Sample{{Name: "/memory/classes/total:bytes"}, {Name: "/memory/classes/heap/released:bytes"}}
	metrics.Read(samples)
	if samples[0].Value.Kind() != metrics.KindUint64 || samples[1].Value.Kind() != metrics.KindUint64 {
		return 0
	}
	return samples[0].Value.Uint64() - samples[1].Value.Uint64()
}
