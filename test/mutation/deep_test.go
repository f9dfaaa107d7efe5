// SPDX-License-Identifier: Apache-2.0

//go:build deep

package mutation

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/store/mutate"
)

// testTimeout is the timeout of one test. On an idle machine, each test takes a few seconds.
const testTimeout = 10 * time.Minute

// Each test in the table passes, and fails when its rule is disabled.
func TestTableMatchesCode(t *testing.T) {
	binaries := map[string]string{}
	for _, r := range table(t) {
		if binaries[r.pkg] == "" {
			binaries[r.pkg] = build(t, r.pkg)
		}
	}
	for _, r := range table(t) {
		t.Run(r.hook, func(t *testing.T) {
			t.Parallel() // many tests are idle most of the time
			out, err := run(t, binaries[r.pkg], r, "")
			require.NoError(t, err, "%s of %s fails without a mutation:\n%s", r.test, r.pkg, out)
			require.NotContains(t, out, "no tests to run")
			out, err = run(t, binaries[r.pkg], r, r.hook)
			require.Error(t, err, "%s of %s does not fail:\n%s", r.test, r.pkg, out)
			require.True(t, failed(out, r.test), "the test crashed instead of failing:\n%s", out)
			require.NotEmpty(t, r.output, "the row differs from the test's output:\n%s", out)
			require.Contains(t, out, r.output, "the test failed for another reason")
		})
	}
}

// failed reports whether the named test failed, or one of its parents failed before it started. It ignores failures of
// other tests.
func failed(out, test string) bool {
	if strings.Contains(out, "--- FAIL: "+test+" (") {
		return true
	}
	top, _, _ := strings.Cut(test, "/")
	return strings.Contains(out, "--- FAIL: "+top+" (") && !strings.Contains(out, "--- FAIL: "+top+"/")
}

// The simulation of whole nodes and clients also detects mutations that the table's tests detect in one package.
// MUTATIONS.md lists the exceptions and their reasons.
func TestSimulationReportsErrors(t *testing.T) {
	simulation := row{pkg: "test/simulation", test: "TestSimulation"}
	binary := build(t, simulation.pkg)
	for _, hook := range []string{
		"INV-2-commits-without-standby-ack", "INV-3-acknowledges-alone-before-swap",
		"INV-10-unknown-outcome-ends-with-call",
	} {
		out, err := run(t, binary, simulation, hook)
		require.Error(t, err, "%s", out)
		// Because of INV-13, the nodes often detect the mutation, and stop before a message is lost.
		require.Regexp(t, "violations:|histories differ|may have lost acknowledged transactions", out)
		require.Contains(t, out, "replay: go test ./test/simulation -run TestSimulation -seed=")
	}
}

// build builds the test binary of a package, with the hooks.
func build(t *testing.T, pkg string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "package.test")
	cmd := exec.CommandContext(t.Context(), "go", "test", "-c", "-tags", "mutate,deep", "-overlay", overlay(t), "-o", name,
		"./"+pkg)
	cmd.Dir = root
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	return name
}

// overlay writes the files with insertions, and returns the path of the overlay file for the go command.
func overlay(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	replace := map[string]string{}
	for name, text := range inserted(t) {
		source, err := filepath.Abs(filepath.Join(root, name))
		require.NoError(t, err)
		replace[source] = filepath.Join(dir, strings.ReplaceAll(name, "/", "-"))
		require.NoError(t, os.WriteFile(replace[source], []byte(text), 0o600))
	}
	list, err := json.Marshal(map[string]any{"Replace": replace})
	require.NoError(t, err)
	file := filepath.Join(dir, "overlay.json")
	require.NoError(t, os.WriteFile(file, list, 0o600))
	return file
}

func run(t *testing.T, binary string, r row, off string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, binary, "-test.run", pattern(r.test), "-test.failfast")
	cmd.Dir = filepath.Join(root, filepath.FromSlash(r.pkg))
	cmd.Env = append(os.Environ(), mutate.Variable+"="+off)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// pattern returns a pattern that matches only the test and its subtest.
func pattern(test string) string {
	parts := strings.Split(test, "/")
	for i := range parts {
		parts[i] = "^" + regexp.QuoteMeta(parts[i]) + "$"
	}
	return strings.Join(parts, "/")
}
