// SPDX-License-Identifier: Apache-2.0

package measure

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/pprof/profile"
	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/cmd/internal/bench"
)

// profiledNode serves profiles in which each goroutine is at one function, and a lock wait that increases by 2 s with
// each request.
func profiledNode(t *testing.T, cpuNanos, lockNanos int64) inspector {
	t.Helper()
	var waits atomic.Int64
	serve := func(value int64) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			f := &profile.Function{ID: 1, Name: modulePath + "store.(*pager).run"}
			at := &profile.Location{ID: 1, Line: []profile.Line{{Function: f}}}
			p := &profile.Profile{
				SampleType: []*profile.ValueType{{Type: "value", Unit: "unit"}}, Function: []*profile.Function{f},
				Location: []*profile.Location{at},
			}
			if value != 0 {
				p.Sample = []*profile.Sample{{Location: p.Location, Value: []int64{value}}}
			}
			_ = p.Write(w) // the client reports an incomplete profile
		}
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/debug/pprof/profile", serve(cpuNanos))
	mux.HandleFunc("/debug/pprof/mutex", serve(lockNanos))
	mux.HandleFunc("/debug/pprof/goroutine", serve(2))
	mux.HandleFunc("/metrics", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = fmt.Fprintf(w, "%s %d\n", waited, 2*waits.Add(1))
	})
	s := httptest.NewServer(mux)
	t.Cleanup(s.Close)
	return inspector{strings.TrimPrefix(s.URL, "http://")}
}

// The sections, locks and lock waits of both nodes are reported per message. A node without samples has no sections.
func TestProfiled(t *testing.T) {
	const messages = 1000
	load := func(r *bench.Result) error {
		r.Messages = messages
		return nil
	}
	o := CapacityOptions{Profile: time.Hour, Locks: true}
	c, err := profiled(t.Context(), bench.Target{}, o, map[string]inspector{
		"active": profiledNode(t, 4_000_000, 5), "standby": profiledNode(t, 2_000_000, 0),
	}, load)
	require.NoError(t, err)
	require.Equal(t, []Section{
		{Node: "active", Function: "store.(*pager).run", Goroutines: 2, CPU: 4, Ceiling: 500_000},
		{Node: "standby", Function: "store.(*pager).run", Goroutines: 2, CPU: 2, Ceiling: 1_000_000},
	}, c.Sections)
	require.Equal(t, []HeldLock{{Node: "active", Function: "store.(*pager).run", Share: 1}}, c.Locks)
	require.Equal(t, map[string]float64{"active": 2000, "standby": 2000}, c.LockWait)
	require.Equal(t, sizing(c.Sections), c.Sizes)

	c, err = profiled(t.Context(), bench.Target{}, o, map[string]inspector{"active": profiledNode(t, 0, 0)}, load)
	require.NoError(t, err)
	require.Equal(t, []Section{}, c.Sections)
}
