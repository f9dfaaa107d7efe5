// SPDX-License-Identifier: Apache-2.0

package progress_test

import (
	"bytes"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/cmd/internal/progress"
)

// A short search prints nothing. A long search prints its progress, and the number of messages for which the filter was
// not evaluated.
func TestSearchProgress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		s := progress.NewSearch(&out, "browse orders", false)
		s.Set(client.SearchProgress{Scanned: 100, From: 100, Before: 1000})
		s.End()
		require.Empty(t, out.String())
		<-time.After(2 * time.Second)
		s.Set(client.SearchProgress{Scanned: 500, From: 500, Before: 1000, Unevaluated: 2})
		require.Contains(t, out.String(), "50%")
		out.Reset()
		s.Set(client.SearchProgress{Scanned: 1000, From: 1000, Before: 1000, Unevaluated: 2})
		s.End()
		require.NotEmpty(t, out.String())

		out.Reset()
		s = progress.NewSearch(&out, "browse orders", true)
		<-time.After(2 * time.Second)
		s.Set(client.SearchProgress{Scanned: 500, From: 500, Before: 1000})
		s.End()
		require.Empty(t, out.String())
	})
}
