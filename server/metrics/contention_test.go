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

// TestContention: waits for locks are recorded only while a profile over some seconds is asked for.
func TestContention(t *testing.T) {
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
				runtime.Gosched() // another one comes to wait
				held.Unlock()
			}
		})
	}
	// One wait of ten is recorded, so that it may take more than one request.
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
				return false // it was not seen while it was on
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
