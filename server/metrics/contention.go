// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"net/http"
	"net/http/pprof"
	"runtime"
	"sync"
)

// recordedWaits is of how many waits for a lock one is recorded, while any are.
const recordedWaits = 10

// contention serves the profile of what goroutines waited for locks, by who held them. Waits are recorded only while a
// request with `seconds` is under way, since that costs processor time: without it the profile has what former requests
// have recorded.
type contention struct {
	profile http.Handler

	mu       sync.Mutex // guards requests, and the runtime's setting
	requests int
}

func newContention() *contention { return &contention{profile: pprof.Handler("mutex")} }

func (c *contention) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.FormValue("seconds") != "" {
		c.record(1)
		defer c.record(-1)
	}
	c.profile.ServeHTTP(w, r)
}

// record begins (1) or ends (-1) a request for which waits are recorded.
func (c *contention) record(change int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.requests += change
	rate := 0
	if c.requests > 0 {
		rate = recordedWaits
	}
	runtime.SetMutexProfileFraction(rate)
}
