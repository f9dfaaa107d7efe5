// SPDX-License-Identifier: Apache-2.0

package console_test

import (
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/server/config"
)

// The map of the page file is shown as a drawing and as a table. The result of a backup check is shown next to
// the backup, regardless of whether the backup is valid.
func TestPageMapAndBackupCheck(t *testing.T) { simulated(t, testPageMapAndBackupCheck) }

func testPageMapAndBackupCheck(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "sets")
	b := newBrowser(t, startNode(t, func(c *config.Config) { c.Backup.Path = dir }).Console)
	b.act("/queues/create", url.Values{"name": {"orders"}, "subscription": {"default"}})
	b.act("/queue/publish?name=orders", url.Values{"body": {"hello"}})
	id := regexp.MustCompile(`/map\?node=([^"]+)"`).FindStringSubmatch(b.get("/store").body)[1]
	b.act("/store/checkpoint", url.Values{"node": {id}})
	a := b.get("/map?node=" + id)
	requireSafe(t, a)
	require.Regexp(t, `<svg class="page-map" role="img" aria-label="page.db: [^"]*% messages`, a.body)
	require.Regexp(t, `<title>Pages 1 to [0-9,.  ]+: `, a.body)
	require.Contains(t, a.body, "a checkpoint")
	missing := b.get("/map?node=unknown")
	require.Contains(t, missing.body, "not found")

	b.act("/backups/start", url.Values{"node": {id}, "full_speed": {"1"}})
	var set string
	require.Eventually(t, func() bool {
		found := regexp.MustCompile(`/backups/check\?[^"]*set=([^"&]+)`).FindStringSubmatch(
			b.get("/backups").body)
		if len(found) > 1 {
			set = found[1]
		}
		return set != ""
	}, testTimeout, 50*time.Millisecond)
	require.Contains(t, b.get("/backups/check?node="+id+"&set="+set).body, set)
	check := func(want string) {
		t.Helper()
		b.act("/backups/check", url.Values{"node": {id}, "set": {set}, "full_speed": {"1"}})
		require.Eventually(t, func() bool {
			return regexp.MustCompile(want).MatchString(b.get("/backups").body)
		}, testTimeout, 50*time.Millisecond)
	}
	check("restorable</span> <span class=\"muted\">checked")
	require.Contains(t, b.get("/store").body, "Restorable: 1 messages")

	pack := filepath.Join(dir, set, "pages.pack")
	raw, err := os.ReadFile(pack)
	require.NoError(t, err)
	raw[len(raw)/2] ^= 1
	require.NoError(t, os.WriteFile(pack, raw, 0o600))
	check("The backup cannot be restored.")
}
