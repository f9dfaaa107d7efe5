// SPDX-License-Identifier: Apache-2.0

package events

import (
	"go/ast"
	"go/parser"
	"go/token"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
)

// Each kind of event has a unique name, and Names contains it.
func TestNamesAreUniqueAndComplete(t *testing.T) {
	file, err := parser.ParseFile(token.NewFileSet(), "events.go", nil, 0)
	require.NoError(t, err)
	kinds := 0
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.TypeSpec)
		if ok && spec.Name.Name != "Event" {
			kinds++
		}
		return true
	})
	seen := make(map[string]bool)
	for _, name := range Names() {
		require.Regexp(t, `^[a-z]+(-[a-z]+)*$`, name)
		seen[name] = true
	}
	require.Len(t, Names(), kinds, "Names lists each kind")
	require.Len(t, seen, kinds, "names are unique")
}

// Log logs each event with its fields. Discard logs nothing.
func TestLog(t *testing.T) {
	core, logs := observer.New(zap.DebugLevel)
	report := Log(zap.New(core))
	report(DiskHasSpace{})
	report(LogDiscarded{UpTo: 7})
	Discard(LogDiscarded{UpTo: 8})
	require.Equal(t, 2, logs.Len())
	require.Equal(t, map[string]any{"up_to_lsn": uint64(7)}, logs.All()[1].ContextMap())
}
