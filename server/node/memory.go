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
	// memoryOutsideLimits is the assumed maximum memory, in bytes, that a process uses for stacks, connections and
	// requests in progress. The memory limit includes it, but at most a quarter of the budget.
	memoryOutsideLimits = 64 << 20
	memoryInterval      = 2 * time.Second
	// memorySlack is the minimum amount of garbage, in percent of the memory in use, that the limit permits.
	memorySlack = 25
)

// StoreMemory returns the part of memory.budget for the store, in bytes. The rest is for requests and deliveries in
// flight, and for uncollected garbage.
func StoreMemory(budgetBytes int64) int64 { return max(budgetBytes/2, store.MinMemoryBudget) }

// LimitMemory keeps the memory of the process within memory.budget until ctx ends, as far as possible. If the
// environment contains GOMEMLIMIT, LimitMemory does nothing. It must be used only in a process that runs one node.
func LimitMemory(ctx context.Context, budgetBytes int64) {
	if os.Getenv("GOMEMLIMIT") != "" {
		return
	}
	before := debug.SetMemoryLimit(memoryLimit(budgetBytes, 0))
	defer debug.SetMemoryLimit(before)
	tick := time.NewTicker(memoryInterval)
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

func memoryLimit(budgetBytes, usedBytes int64) int64 {
	return max(StoreMemory(budgetBytes), usedBytes+usedBytes/100*memorySlack) + min(memoryOutsideLimits, budgetBytes/4)
}

func tailMemory(budgetBytes int64) int {
	return int(min(replication.DefaultTailBytes, max(budgetBytes/16, 1<<20)))
}

func heapInUse() int64 {
	sample := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	metrics.Read(sample)
	if sample[0].Value.Kind() != metrics.KindUint64 {
		return 0
	}
	return int64(sample[0].Value.Uint64())
}

// runtimeMemory returns the number of bytes that the Go runtime has obtained from the system and not released.
// Unlike the resident size that the system reports, it does not include mapped files.
func runtimeMemory() uint64 {
	samples := []metrics.Sample{{Name: "/memory/classes/total:bytes"}, {Name: "/memory/classes/heap/released:bytes"}}
	metrics.Read(samples)
	if samples[0].Value.Kind() != metrics.KindUint64 || samples[1].Value.Kind() != metrics.KindUint64 {
		return 0
	}
	return samples[0].Value.Uint64() - samples[1].Value.Uint64()
}

// memoryAllowed returns the memory usage, in bytes, above which a condition is raised.
func memoryAllowed(budgetBytes int64) int64 { return budgetBytes + budgetBytes/4 + memoryOutsideLimits }
