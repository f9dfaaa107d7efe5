// SPDX-License-Identifier: Apache-2.0

package measure

import (
	"testing"

	"github.com/google/pprof/profile"
	"github.com/stretchr/testify/require"
)

// Waits are attributed to the function that held the lock, and only the longest are reported.
func TestHeldLocks(t *testing.T) {
	held := func(ns int64, stack ...string) *profile.Sample {
		s := profile.Sample{Value: []int64{1, ns}}
		for _, name := range stack {
			s.Location = append(s.Location, &profile.Location{
				Line: []profile.Line{{Function: &profile.Function{Name: name}}},
			})
		}
		return &s
	}
	p := profile.Profile{Sample: []*profile.Sample{
		held(600, "sync.(*Mutex).Unlock", modulePath+"replication.(*queue).add", modulePath+"replication.(*Primary).Commit"),
		held(100, "runtime.unlock", "runtime.goready"),
		held(100, "internal/sync.(*Mutex).Unlock", "sync.(*Mutex).Unlock", modulePath+"replication.(*queue).add"),
		held(200, "sync.(*RWMutex).Unlock", "google.golang.org/grpc.(*Server).serve"),
		held(0, "sync.(*Mutex).Unlock", "main.never"),
	}}
	require.Equal(t, []HeldLock{
		{Node: "active", Function: "replication.(*queue).add", Share: 0.7},
		{Node: "active", Function: "google.golang.org/grpc.(*Server).serve", Share: 0.2},
		{Node: "active", Function: runtimeSection, Share: 0.1},
	}, locks("active", &p))
	require.Empty(t, locks("active", &profile.Profile{}))
}
