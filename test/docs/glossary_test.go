// SPDX-License-Identifier: Apache-2.0

package docs

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The terms of the glossary are sorted and unique, and each named type is declared.
func TestGlossary(t *testing.T) {
	text := documents(t)[filepath.Join(top, "docs", "reference", "glossary.md")]
	rows := regexp.MustCompile("(?m)^\\| ([^|]+) \\| [^|]+ \\| `([^`]+)\\.([A-Za-z]+)` \\|$").FindAllStringSubmatch(
		text, -1)
	require.Len(t, rows, strings.Count(text, "\n| ")-1, "a row does not end with a type")
	var terms []string
	for _, row := range rows {
		term, folder, name := strings.ToLower(row[1]), row[2], row[3]
		require.NotContains(t, terms, term)
		terms = append(terms, term)
		require.True(t, declares(t, folder, name), "%s: type %s is not declared in %s", term, name, folder)
	}
	require.True(t, slices.IsSorted(terms), "%q", terms)
}

// declares reports whether a package declares a type.
func declares(t *testing.T, folder, name string) bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(top, folder, "*.go"))
	require.NoError(t, err)
	declaration := regexp.MustCompile(`(?m)^(type |\t)` + name + ` (struct|interface|= |[a-z])`)
	for _, file := range files {
		b, err := os.ReadFile(file)
		require.NoError(t, err)
		if !strings.HasSuffix(file, "_test.go") && declaration.Match(b) {
			return true
		}
	}
	return false
}
