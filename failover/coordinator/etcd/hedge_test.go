// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// endpoints responds to each request after the next of its delays. It never responds if that delay is negative.
type endpoints struct {
	delays []time.Duration
	calls  atomic.Int64
}

func (e *endpoints) call(ctx context.Context) (int, error) {
	i := int(e.calls.Add(1) - 1)
	d := e.delays[i%len(e.delays)]
	if d < 0 {
		<-ctx.Done()
		return 0, ctx.Err()
	}
	select {
	case <-time.After(d):
		return i, nil
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}

// A request is sent again after each hedgeDelay without a response. If it was sent more than once, the outcome is
// unknown: a conflict may be caused by the request's own write.
func TestHedged(t *testing.T) {
	const silent = -1
	for _, tt := range []struct {
		name           string
		delays         []time.Duration
		took           time.Duration
		calls          int
		outcomeUnknown bool
	}{
		{"in time", []time.Duration{hedgeDelay - 1}, hedgeDelay - 1, 1, false},
		{"late", []time.Duration{hedgeDelay + 1}, hedgeDelay + 1, 2, true},
		{"one of two is silent", []time.Duration{silent, 0}, hedgeDelay, 2, true},
		{"two of three are silent", []time.Duration{silent, silent, 0}, 2 * hedgeDelay, 3, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := &endpoints{delays: tt.delays}
				began := time.Now()
				_, outcomeUnknown, err := hedged(t.Context(), len(tt.delays)+hedgedAttempts, e.call)
				require.NoError(t, err)
				require.Equal(t, tt.took, time.Since(began))
				require.EqualValues(t, tt.calls, e.calls.Load())
				require.Equal(t, tt.outcomeUnknown, outcomeUnknown)
			})
		})
	}
}
