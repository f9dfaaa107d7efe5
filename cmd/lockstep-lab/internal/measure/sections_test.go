// SPDX-License-Identifier: Apache-2.0

package measure

import (
	"testing"

	"github.com/google/pprof/profile"
	"github.com/stretchr/testify/require"
)

// CPU time is attributed to the start function of a goroutine, skipping functions that only start goroutines.
func TestSections(t *testing.T) {
	stack := func(names ...string) []*profile.Location { // the innermost first
		var out []*profile.Location
		for _, n := range names {
			out = append(out, &profile.Location{Line: []profile.Line{{Function: &profile.Function{Name: n}}}})
		}
		return out
	}
	cpu := &profile.Profile{Sample: []*profile.Sample{
		{Location: stack("syscall.write", modulePath+"store.(*pager).run", "runtime.goexit"), Value: []int64{1, 3000}},
		{Location: stack(modulePath + "store.(*pager).run"), Value: []int64{1, 1000}},
		{Location: stack("a.work", "golang.org/x/sync/errgroup.(*Group).Go.func1"), Value: []int64{1, 8000}},
		{Location: stack("runtime.scan", "runtime.gcBgMarkWorker", "runtime.goexit"), Value: []int64{1, 500}},
		{Location: stack("runtime.goexit"), Value: []int64{1, 500}},
	}}
	goroutines := count(&profile.Profile{Sample: []*profile.Sample{
		{Location: stack("x", "a.work", "golang.org/x/sync/errgroup.(*Group).Go.func1"), Value: []int64{4}},
		{Location: stack(modulePath + "store.(*pager).run"), Value: []int64{1}},
	}})
	require.Equal(t, []Section{
		{Node: "active", Function: "a.work", Goroutines: 4, CPU: 0.8, Ceiling: 5e6},
		{Node: "active", Function: "store.(*pager).run", Goroutines: 1, CPU: 0.4, Ceiling: 2.5e6},
		{Node: "active", Function: runtimeSection, CPU: 0.1},
	}, sections("active", cpu, goroutines, 10))
}

// The median of several counts is used, so that a single count at the start or the end has no effect.
func TestMedianOfCounts(t *testing.T) {
	require.Equal(t, map[string]int{"read": 5, "dispatch": 1, "left": 0}, usual([]map[string]int{
		{"read": 1, "dispatch": 2, "left": 1}, {"read": 5, "dispatch": 1}, {"read": 5, "dispatch": 1},
	}))
	require.Empty(t, usual(nil))
}

// The goroutine that delivers messages of a queue is distinguished from the goroutine that settles them.
func TestSectionsOfDispatcher(t *testing.T) {
	begun := func(method string) *profile.Sample {
		var s profile.Sample
		for _, n := range []string{method, method + "-fm", "(*Registry).start.func1", "(*Registry).start.gowrap1"} {
			f := &profile.Function{Name: modulePath + "server/delivery/dispatch." + n}
			s.Location = append(s.Location, &profile.Location{Line: []profile.Line{{Function: f}}})
		}
		s.Value = []int64{1}
		return &s
	}
	samples := []*profile.Sample{begun("(*dispatcher).deliver"), begun("(*dispatcher).settle")}
	require.Equal(t, map[string]int{
		"server/delivery/dispatch.(*dispatcher).deliver": 1, "server/delivery/dispatch.(*dispatcher).settle": 1,
	}, count(&profile.Profile{Sample: samples}))
}
