// SPDX-License-Identifier: Apache-2.0

package message

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// While the command runs, the acknowledgement deadline is extended three times per timeout. A failed extension is not
// retried.
func TestExtend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		var at []time.Duration
		run := func(timeout time.Duration, err error) []time.Duration {
			ctx, cancel := context.WithTimeout(t.Context(), 3500*time.Millisecond)
			defer cancel()
			began, at = time.Now(), nil
			extend(ctx, timeout, func(context.Context) error {
				at = append(at, time.Since(began))
				return err
			})
			return at
		}
		require.Equal(t, []time.Duration{time.Second, 2 * time.Second, 3 * time.Second}, run(3*time.Second, nil))
		require.Equal(t, []time.Duration{time.Second}, run(3*time.Second, errors.New("expired")))
		require.Empty(t, run(0, nil))
		require.Zero(t, time.Since(began), "there is no deadline to extend")
	})
}
