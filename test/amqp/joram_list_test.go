// SPDX-License-Identifier: Apache-2.0

package amqp

import (
	_ "embed"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// joramList contains the names of Joram's tests, one per line. A test that cannot pass is excluded: a tab and the
// reason follow its name.
//
//go:embed testdata/joram.txt
var joramList string

// joramTests returns the reason for the exclusion of each selected test by name, or "" if the test must pass. It
// selects the tests with one of the parts in their names, or all tests if parts is empty.
func joramTests(list string, parts []string) map[string]string {
	all := map[string]string{}
	for line := range strings.Lines(list) {
		name, reason, _ := strings.Cut(strings.TrimSpace(line), "\t")
		if len(parts) == 0 || slices.ContainsFunc(parts, func(p string) bool { return strings.Contains(name, p) }) {
			all[name] = reason
		}
	}
	return all
}

// joramErrors returns the differences between the list and the results of the executed tests. got contains the error
// of each test by name, or "" if the test passed.
func joramErrors(want, got map[string]string) []string {
	var out []string
	for name, err := range got {
		reason, listed := want[name]
		switch {
		case !listed:
			out = append(out, name+": not in the list")
		case err != "" && reason == "":
			out = append(out, fmt.Sprintf("%s: failed: %s", name, err))
		case err == "" && reason != "":
			out = append(out, fmt.Sprintf("%s: passed, although it is excluded: %s", name, reason))
		}
	}
	for name := range maps.Keys(want) {
		if _, executed := got[name]; !executed {
			out = append(out, name+": not executed")
		}
	}
	slices.Sort(out)
	return out
}

// The run fails if a required test fails, an excluded test passes, a listed test is not executed, or an unlisted test
// is executed.
func TestJoramList(t *testing.T) {
	want := joramTests("A.one\nA.two\nB.three\tunsupported\n", nil)
	require.Equal(t, map[string]string{"A.one": "", "A.two": "", "B.three": "unsupported"}, want)
	require.Empty(t, joramErrors(want, map[string]string{"A.one": "", "A.two": "", "B.three": "error"}))
	require.Len(t, joramErrors(want, map[string]string{"A.one": "", "A.two": "error", "B.three": "error"}), 1)
	require.Len(t, joramErrors(want, map[string]string{"A.one": "", "A.two": "", "B.three": ""}), 1)
	require.Len(t, joramErrors(want, map[string]string{"A.one": "", "B.three": "error"}), 1)
	require.Len(t, joramErrors(want, map[string]string{"A.one": "", "A.two": "", "B.three": "error", "C.four": ""}), 1)
	require.Len(t, joramTests("A.one\nA.two\nB.three\tunsupported\n", []string{"one", "B."}), 2)
	require.Len(t, joramTests(joramList, nil), strings.Count(joramList, "\n"), "duplicate names")
}
