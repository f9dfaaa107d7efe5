// SPDX-License-Identifier: Apache-2.0

// Package mutation checks test/MUTATIONS.md: if the rule of a row is disabled, the named test fails, and otherwise it
// passes (build tag deep). The default tier checks that the table lists every hook.
package mutation

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const root = "../.."

// row is a row of the table: if hook disables its rule, the test of the package fails with this output.
type row struct{ hook, pkg, test, output string }

var (
	rowPattern  = regexp.MustCompile("(?m)^\\| `(INV-[^`]+)` \\| [^|]+ \\| `([^`]+)` \\| `([^`]+)` \\|(?: `([^`]+)` \\|)?$")
	hookPattern = regexp.MustCompile(`mutate\.Off\("([^"]+)"\)`)
)

func table(t *testing.T) (rows []row) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, "test", "MUTATIONS.md"))
	require.NoError(t, err)
	for _, m := range rowPattern.FindAllStringSubmatch(string(text), -1) {
		rows = append(rows, row{hook: m[1], pkg: m[2], test: m[3], output: m[4]})
	}
	return rows
}

// hooks returns the names of all hooks in the source.
func hooks(t *testing.T) (names []string) {
	t.Helper()
	for _, dir := range []string{"store", "replication", "failover", "server"} {
		err := filepath.WalkDir(filepath.Join(root, dir), func(path string, d os.DirEntry, err error) error {
			if err != nil || d.IsDir() || filepath.Ext(path) != ".go" {
				return err
			}
			text, err := os.ReadFile(path)
			for _, m := range hookPattern.FindAllStringSubmatch(string(text), -1) {
				names = append(names, m[1])
			}
			return err
		})
		require.NoError(t, err)
	}
	for _, i := range insertions {
		for _, m := range hookPattern.FindAllStringSubmatch(i.with, -1) {
			names = append(names, m[1])
		}
	}
	slices.Sort(names)
	return slices.Compact(names) // a hook may be used in two places
}

// Every hook is in the table, every invariant has a hook, and every row has an existing hook.
func TestTableIsComplete(t *testing.T) {
	var listed []string
	for _, r := range table(t) {
		listed = append(listed, r.hook)
	}
	require.ElementsMatch(t, hooks(t), listed)
	for _, n := range []string{"1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "11", "12", "13"} {
		require.True(t, slices.ContainsFunc(listed, func(h string) bool { return strings.HasPrefix(h, "INV-"+n+"-") }),
			"INV-%s has no hook", n)
	}
}
