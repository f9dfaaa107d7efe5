// SPDX-License-Identifier: Apache-2.0

package commands_test

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/cmd/internal/clitest"
	"github.com/lockstep-mq/lockstep/test/golden"
)

// The names and types in the --output json output of each command are unchanged. The tests named TestJSON of the groups
// check the values.
func TestJSONShapes(t *testing.T) {
	p, c := clitest.StartNodes(t, true)
	var text strings.Builder
	show := func(args ...string) {
		for line := range strings.Lines(c.OK(append(args, "--output", "json")...)) {
			shown := strings.Join(args, " ")
			shown = strings.ReplaceAll(shown, p.Nodes[0].Dir, "DIR")
			text.WriteString(shown + "\n  " + golden.Shape(t, line) + "\n")
		}
	}
	for _, line := range []string{
		"version", "queue create q -s one -s two", "queue list", "queue show q", "queue alter q --max-bytes 1MiB",
		"publish q hello -p key=value", "browse q", "browse q --headers-only", "subscription create q three",
		"subscription list q", "subscription delete q three", "consume q -s one -f -n 1", "queue purge q -s two",
		"queue drop-corrupt q --dry-run", "queue create dead",
		"queue create work --max-deliveries 3 --dead-letter dead", "publish work hello", "consume work --reject -f -n 1",
		"browse dead", "queue replay-dead dead", "queue delete work", "queue delete dead",
		"checkpoint", "verify", "settings get log.level",
		"settings set log.level info", "settings unset log.level", "store check", "store digest", "store scan",
		"store shrink --dry-run", "store drop-old", "store plan", "store settings set page-size-max 16KiB",
		"store settings get page-size-max", "job put nightly --kind scan --schedule @daily", "job list",
		"schedule put s --cron @yearly --queue q --body x", "schedule list", "schedule show s", "schedule run s",
		"schedule pause s", "schedule resume s", "schedule delete s",
		"job run nightly", "job history nightly", "job delete nightly", "queue delete q",
	} {
		show(strings.Fields(line)...)
	}
	sets := filepath.Join(p.Nodes[0].Dir, "sets")
	show("store", "backup", "--path", sets)
	show("store", "backups", sets)
	show("store", "restore", sets, "--data-dir", filepath.Join(p.Nodes[0].Dir, "restored"))
	require.NoError(t, p.Close())
	dir := filepath.Join(p.Nodes[0].Dir, "data")
	show("store", "check", dir)
	show("store", "digest", dir)
	show("store", "dump-meta", dir)
	show("store", "dump-page", dir, "1")
	show("store", "dump-log", dir, "--segments")
	golden.Text(t, "shapes.txt", text.String())
}
