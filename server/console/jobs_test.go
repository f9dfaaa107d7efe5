// SPDX-License-Identifier: Apache-2.0

package console_test

import (
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A run of a job that fails is shown as failed.
func TestFailedJobIsShown(t *testing.T) { simulated(t, testFailedJobIsShown) }

func testFailedJobIsShown(t *testing.T) {
	b := newBrowser(t, startNode(t, nil).Console)
	b.waitActive()
	b.act("/jobs/put", url.Values{"name": {"n"}, "schedule": {"@yearly"}, "kind": {"backup"}}) // no backup path
	b.act("/jobs/run?name=n", nil)
	var page string
	require.Eventually(t, func() bool {
		page = b.get("/store").body
		return strings.Contains(page, "Job n") && !strings.Contains(page, `</i>running</span>`)
	}, testTimeout, 50*time.Millisecond)
	require.Contains(t, page, `</i>failed</span>`)
	require.NotContains(t, page, `</i>done</span>`)
}
