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

// A short search prints nothing. A long one prints its position, and the number of messages that were not evaluated.
func TestSearch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		s := progress.NewSearch(&out, "browse orders", false)
		s.Set(client.SearchProgress{Scanned: 100, From: 100, Before: 1000})
		s.End()
		require.Empty(t, out.String())
		time.Sleep(2 * time.Second)
		s.Set(client.SearchProgress{Scanned: 500, From: 500, Before: 1000, Unevaluated: 2})
		require.Equal(t, "browse orders: searching 50%, 500 messages of 1,000 messages\n", out.String())
		out.Reset()
		s.Set(client.SearchProgress{Scanned: 1000, From: 1000, Before: 1000, Unevaluated: 2})
		s.End()
		require.Contains(t, out.String(), "2 messages did not match because of a limit")

		out.Reset()
		s = progress.NewSearch(&out, "browse orders", true)
		time.Sleep(2 * time.Second)
		s.Set(client.SearchProgress{Scanned: 500, From: 500, Before: 1000})
		s.End()
		require.Empty(t, out.String())
	})
}
