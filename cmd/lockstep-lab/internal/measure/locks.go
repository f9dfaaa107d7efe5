// SPDX-License-Identifier: Apache-2.0

package measure

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/pprof/profile"
)

// HeldLock is a function that held a contended lock.
type HeldLock struct {
	// Node is "active" or "standby".
	Node string `json:"node"`
	// Function released the lock, without the module path.
	Function string `json:"function"`
	// fraction of the time that goroutines of the node waited for locks
	Share float64 `json:"share"`
}

const mostLocks = 5

// locks groups a profile of waits by the function that held the lock.
func locks(node string, p *profile.Profile) []HeldLock {
	nanos, all := map[string]int64{}, int64(0)
	for _, s := range p.Sample {
		ns := s.Value[len(s.Value)-1]
		nanos[holder(s)] += ns
		all += ns
	}
	out := make([]HeldLock, 0, len(nanos))
	for name, ns := range nanos {
		if ns > 0 {
			out = append(out, HeldLock{Node: node, Function: name, Share: float64(ns) / float64(all)})
		}
	}
	slices.SortFunc(out, func(a, b HeldLock) int {
		return cmp.Or(cmp.Compare(b.Share, a.Share), cmp.Compare(a.Function, b.Function))
	})
	return out[:min(len(out), mostLocks)]
}

func holder(s *profile.Sample) string {
	for _, at := range s.Location {
		for _, line := range at.Line {
			name := line.Function.Name
			if !strings.HasPrefix(name, "sync.") && !strings.HasPrefix(name, "internal/sync.") &&
				!strings.HasPrefix(name, "runtime.") {
				return strings.TrimPrefix(name, modulePath)
			}
		}
	}
	return runtimeSection
}

func (n inspector) contention(ctx context.Context, d time.Duration) (*profile.Profile, error) {
	return n.profile(ctx, fmt.Sprintf("/debug/pprof/mutex?seconds=%d", int(d.Seconds())))
}
