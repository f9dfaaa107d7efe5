// SPDX-License-Identifier: Apache-2.0

package ratios

import (
	"flag"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var updateFlag = flag.Bool("update", false, "write the table of the ratios into docs/decisions/measurements.md")

const documented = "../../docs/decisions/measurements.md"

// tableBegins and tableEnds enclose the table in the documentation.
const (
	tableBegins = "<!-- ratios: go test ./test/ratios -update -->\n"
	tableEnds   = "<!-- end of ratios -->"
)

// docs/decisions/measurements.md contains the table and the figures of ratios.json.
func TestRatiosAreDocumented(t *testing.T) {
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
		require.Contains(t, before+after, r.Figure, "%s", r.Name)
	}
}

func expected(t *testing.T) *expectations {
	t.Helper()
	data, err := os.ReadFile("ratios.json")
	require.NoError(t, err)
	e, err := parse(data)
	require.NoError(t, err)
	return e
}

// only removes ratios with names that do not match, and runs that are no longer used.
func (e *expectations) only(match *regexp.Regexp) {
	e.Ratios = slices.DeleteFunc(e.Ratios, func(r ratio) bool { return !match.MatchString(r.Name) })
	e.Runs = slices.DeleteFunc(e.Runs, func(r run) bool {
		return !slices.ContainsFunc(e.Ratios, func(of ratio) bool {
			return slices.ContainsFunc(of.values(), func(v value) bool { return v.Run == r.Name })
		})
	})
}
