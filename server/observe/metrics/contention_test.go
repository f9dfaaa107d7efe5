// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"net/http"
	"net/http/httptest"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/google/pprof/profile"
	"github.com/stretchr/testify/require"
)

// Lock waits are recorded only during a profile request that has a duration.
func TestMutexProfileIsOnDemand(t *testing.T) {
	c := newContention()
	rate := func() int { return runtime.SetMutexProfileFraction(-1) }
	require.Zero(t, rate())
	stop := make(chan struct{})
	var held sync.Mutex
	var waiting sync.WaitGroup
	for range 16 {
		waiting.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				held.Lock()
				runtime.Gosched() // let another goroutine block
				held.Unlock()
			}
		})
	}
	// Only one in ten waits is recorded, so several requests may be required.
	require.Eventually(t, func() bool {
		w := httptest.NewRecorder()
		done := make(chan struct{})
		go func() {
			defer close(done)
			c.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/debug/pprof/mutex?seconds=1", nil))
		}()
		for recorded := false; !recorded; {
			select {
			case <-done:
				return false // the other goroutine did not wait in time
			default:
				recorded = rate() == recordedWaits
			}
		}
		<-done
		p, err := profile.Parse(w.Body)
		return err == nil && rate() == 0 && len(p.Sample) > 0
	}, time.Minute, time.Millisecond)
	close(stop)
	waiting.Wait()
}
