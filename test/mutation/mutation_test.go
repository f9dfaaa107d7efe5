// SPDX-License-Identifier: Apache-2.0

// Package mutation proves test/MUTATIONS.md true: with what enforces an invariant switched off, the test that is named
// there fails, and without, it passes.
package mutation

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/store/mutate"
)

const (
	root = "../.."
	// patience with one test. All that are named take less than a second.
	patience = 2 * time.Minute
)

// row of the table: with the hook, the test of the package fails and says so.
type row struct{ hook, pkg, test, says string }

var (
	rowPattern  = regexp.MustCompile("(?m)^\\| `(INV-[^`]+)` \\| [^|]+ \\| `([^`]+)` \\| `([^`]+)` \\|(?: `([^`]+)` \\|)?$")
	hookPattern = regexp.MustCompile(`mutate\.Off\("([^"]+)"\)`)
)

func table(t *testing.T) (rows []row) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, "test", "MUTATIONS.md"))
	require.NoError(t, err)
	for _, m := range rowPattern.FindAllStringSubmatch(string(text), -1) {
		rows = append(rows, row{hook: m[1], pkg: m[2], test: m[3], says: m[4]})
	}
	return rows
}

// hooks finds all places that ask.
func hooks(t *testing.T) (names []string) {
	t.Helper()
	for _, dir := range []string{"store", "replication", "failover", "server", "client"} {
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
	slices.Sort(names)
	return slices.Compact(names) // one that is asked for in two places is one hook
}

// TestTableIsComplete: every hook is in the table, every invariant has one, and nothing is listed that is not there.
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

// TestTableIsTrue runs each test twice.
func TestTableIsTrue(t *testing.T) {
	binaries := map[string]string{}
	for _, r := range table(t) {
		if binaries[r.pkg] == "" {
			binaries[r.pkg] = build(t, r.pkg)
		}
	}
	for _, r := range table(t) {
		t.Run(r.hook, func(t *testing.T) {
			t.Parallel() // some wait more than they compute
			out, err := run(t, binaries[r.pkg], r, "")
			require.NoError(t, err, "%s of %s fails with nothing switched off:\n%s", r.test, r.pkg, out)
			require.NotContains(t, out, "no tests to run")
			out, err = run(t, binaries[r.pkg], r, r.hook)
			require.Error(t, err, "%s of %s does not notice it:\n%s", r.test, r.pkg, out)
			require.True(t, failed(out, r.test), "it did not fail, it broke:\n%s", out)
			require.NotEmpty(t, r.says, "the row does not tell what the test says:\n%s", out)
			require.Contains(t, out, r.says, "it failed for another reason")
		})
	}
}

// failed tells whether the very test failed, or one above it before it could begin; not only another one beside it.
func failed(out, test string) bool {
	if strings.Contains(out, "--- FAIL: "+test+" (") {
		return true
	}
	top, _, _ := strings.Cut(test, "/")
	return strings.Contains(out, "--- FAIL: "+top+" (") && !strings.Contains(out, "--- FAIL: "+top+"/")
}

// TestSimulationNotices: what the table's tests notice of one package is noticed from outside, too: by two whole nodes
// and their clients, in test/simulation. Not every hook is: MUTATIONS.md says which, and why.
func TestSimulationNotices(t *testing.T) {
	simulation := row{pkg: "test/simulation", test: "TestSimulation"}
	binary := build(t, simulation.pkg)
	for _, hook := range []string{
		"INV-2-standby-is-not-waited-for", "INV-3-acknowledges-alone-before-the-swap",
		"INV-10-doubt-ends-with-the-call",
	} {
		out, err := run(t, binary, simulation, hook)
		require.Error(t, err, "%s", out)
		// Since INV-13 stands behind them, the nodes often notice it themselves, and stop before anything is lost.
		require.Regexp(t, "violations:|HISTORIES DIFFER", out)
		require.Contains(t, out, "replay: go test ./test/simulation -run TestSimulation -seed=")
	}
}

// build makes the test binary of a package, with the hooks.
func build(t *testing.T, pkg string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "package.test")
	cmd := exec.CommandContext(t.Context(), "go", "test", "-c", "-tags", "mutate", "-o", name, "./"+pkg)
	cmd.Dir = root
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	return name
}

func run(t *testing.T, binary string, r row, off string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, binary, "-test.run", pattern(r.test), "-test.failfast")
	cmd.Dir = filepath.Join(root, filepath.FromSlash(r.pkg))
	cmd.Env = append(os.Environ(), mutate.Variable+"="+off)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// pattern matches the test and its subtest, and no other.
func pattern(test string) string {
	parts := strings.Split(test, "/")
	for i := range parts {
		parts[i] = "^" + regexp.QuoteMeta(parts[i]) + "$"
	}
	return strings.Join(parts, "/")
}
