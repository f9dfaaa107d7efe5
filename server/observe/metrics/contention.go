// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"net/http"
	"net/http/pprof"
	"runtime"
	"sync"
)

// recordedWaits: while recording, one of this many lock waits is recorded.
const recordedWaits = 10

// contention serves the mutex profile, attributed to the lock holders. Waits are recorded only during a request with
// `seconds`, since recording costs CPU time. Other requests return the waits recorded by earlier ones.
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

// record starts (1) or ends (-1) a request for which waits are recorded.
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
