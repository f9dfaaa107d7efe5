// SPDX-License-Identifier: Apache-2.0

package ratios

import (
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var (
	updateFlag = flag.Bool("update", false, "write the table of the ratios into docs/benchmarks.md")
	onlyFlag   = flag.String("only", "", "measure only the ratios whose names match this")
)

const documented = "../../docs/benchmarks.md"

// Where the table is in the documentation.
const (
	tableBegins = "<!-- ratios: go test ./test/ratios -update -->\n"
	tableEnds   = "<!-- end of ratios -->"
)

// TestRatios measures, and holds the ratios to their ranges.
func TestRatios(t *testing.T) {
	text := os.Getenv("LOCKSTEP_RATIOS")
	if text == "" {
		t.Skip("it measures for a quarter of an hour: LOCKSTEP_RATIOS says how many rounds of all")
	}
	rounds, err := strconv.Atoi(text)
	require.NoError(t, err, "LOCKSTEP_RATIOS is a number of rounds")
	require.Positive(t, rounds)
	e := expected(t)
	only, err := regexp.Compile(*onlyFlag)
	require.NoError(t, err)
	e.only(only)
	require.NotEmpty(t, e.Ratios, "no ratio matches %q", *onlyFlag)
	m := measurer{
		program: []string{program(t)}, peers: os.Getenv("LOCKSTEP_PEERS"), keep: os.Getenv("LOCKSTEP_KEEP"), log: t.Logf,
	}
	if m.peers != "" {
		require.DirExists(t, m.peers, "LOCKSTEP_PEERS")
	}
	if m.keep != "" {
		require.NoError(t, os.MkdirAll(m.keep, 0o750))
	}
	shown, failures := table(m.measure(t.Context(), e, rounds))
	t.Logf("medians of %d rounds:\n%s", rounds, shown)
	require.Zero(t, failures, "ratios are not within their ranges:\n%s", shown)
}

// TestDocumented: docs/benchmarks.md has the table of ratios.json, and the figures that these ratios belong to.
func TestDocumented(t *testing.T) {
	e := expected(t)
	data, err := os.ReadFile(documented)
	require.NoError(t, err)
	before, rest, found := strings.Cut(string(data), tableBegins)
	require.True(t, found, "%s has no %q", documented, tableBegins)
	have, after, found := strings.Cut(rest, tableEnds)
	require.True(t, found, "%s has no %q", documented, tableEnds)
	if *updateFlag {
		have = e.documentation()
		require.NoError(t, os.WriteFile(documented, []byte(before+tableBegins+have+tableEnds+after), 0o644))
	}
	require.Equal(t, e.documentation(), have, "run: go test ./test/ratios -update")
	for _, r := range e.Ratios {
		require.Contains(t, before+after, r.Figure, "%s: the figure that it belongs to", r.Name)
	}
}

// TestCommands: the program takes the commands and their flags; none is run.
func TestCommands(t *testing.T) {
	if testing.Short() {
		t.Skip("the program is built")
	}
	binary := program(t)
	for _, r := range expected(t).Runs {
		out, err := exec.CommandContext(t.Context(), binary, helpOf(r)...).CombinedOutput()
		require.NoError(t, err, "%s: %s", r.Name, out)
		require.Contains(t, string(out), "lockstep bench "+strings.Fields(r.Command)[0])
	}
	out, err := exec.CommandContext(t.Context(), binary, helpOf(run{Command: "publish --nonsense"})...).CombinedOutput()
	require.Error(t, err, "%s", out)
}

// helpOf asks for the help of a command: the flags before that must be right.
func helpOf(r run) []string {
	return slices.Concat([]string{"bench"}, strings.Fields(r.Command), []string{"--output", "json", "--help"})
}

func expected(t *testing.T) *expectations {
	t.Helper()
	data, err := os.ReadFile("ratios.json")
	require.NoError(t, err)
	e, err := parse(data)
	require.NoError(t, err)
	return e
}

// only leaves the ratios whose names match, and the runs that they need.
func (e *expectations) only(match *regexp.Regexp) {
	e.Ratios = slices.DeleteFunc(e.Ratios, func(r ratio) bool { return !match.MatchString(r.Name) })
	e.Runs = slices.DeleteFunc(e.Runs, func(r run) bool {
		return !slices.ContainsFunc(e.Ratios, func(of ratio) bool {
			return slices.ContainsFunc(of.values(), func(v value) bool { return v.Run == r.Name })
		})
	})
}

// program returns the path of the program that is measured.
func program(t *testing.T) string {
	t.Helper()
	if path := os.Getenv("LOCKSTEP_BINARY"); path != "" {
		path, err := filepath.Abs(path)
		require.NoError(t, err)
		return path
	}
	path := filepath.Join(t.TempDir(), "lockstep")
	out, err := exec.CommandContext(t.Context(), "go", "build", "-o", path,
		"github.com/lockstep-mq/lockstep/cmd/lockstep").CombinedOutput()
	require.NoError(t, err, "%s", out)
	return path
}
