// SPDX-License-Identifier: Apache-2.0

package ratchet

import (
	"go/ast"
	"go/parser"
	"go/token"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// textAssertions contains the names of the assertions that compare texts.
var textAssertions = map[string]bool{
	"Contains": true, "NotContains": true, "Equal": true, "EqualError": true, "ErrorContains": true, "Regexp": true,
}

var englishWord = regexp.MustCompile(`[A-Za-z]{2,}`)

// Tests assert codes, reasons and fields. The ratchet counts calls of ErrorContains, and comparisons with a text of
// three or more words.
func TestSentences(t *testing.T) {
	found := map[string][]finding{}
	for _, name := range files(t) {
		if strings.HasSuffix(name, "_test.go") && !strings.HasPrefix(name, "test/ratchet/") {
			if all := sentences(t, name, read(t, name)); len(all) > 0 {
				found[name] = all
			}
		}
	}
	require.NotEmpty(t, found)
	check(t, "sentences.txt", found)
}

// The check finds both kinds of assertions, and ignores their messages.
func TestSentencesFindsAssertions(t *testing.T) {
	const source = `package p
func TestA(t *testing.T) {
	require.ErrorContains(t, err, name)
	require.Contains(t, out, "the queue "+name+" is full now")
	assert.Equal(t, "one sentence here", out)
	require.Equal(t, 1, n, "a message about the assertion")
	require.Contains(t, out, "<p class='a b c'>")
	require.ErrorIs(t, err, io.EOF, "a message about the assertion")
}
`
	var lines []int
	for _, f := range sentences(t, "p_test.go", source) {
		lines = append(lines, f.line)
	}
	require.Equal(t, []int{3, 4, 5}, lines)
}

// sentences returns the assertions of a file that compare sentences.
func sentences(t *testing.T, name, source string) (found []finding) {
	t.Helper()
	fset := token.NewFileSet()
	file, err := parser.ParseFile(fset, name, source, 0)
	require.NoError(t, err)
	ast.Inspect(file, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return true
		}
		f, ok := call.Fun.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		pkg, ok := f.X.(*ast.Ident)
		if !ok || pkg.Name != "require" && pkg.Name != "assert" || !textAssertions[f.Sel.Name] {
			return true
		}
		if f.Sel.Name == "ErrorContains" || hasSentence(call.Args[1:min(3, len(call.Args))]) {
			found = append(found, finding{fset.Position(call.Pos()).Line, f.Sel.Name})
		}
		return true
	})
	return found
}

// hasSentence reports whether a literal in args has three or more words and is not markup.
func hasSentence(args []ast.Expr) (yes bool) {
	for _, arg := range args {
		ast.Inspect(arg, func(n ast.Node) bool {
			if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING {
				text, err := strconv.Unquote(lit.Value)
				yes = yes || err == nil && !strings.HasPrefix(text, "<") && strings.Contains(text, " ") &&
					len(englishWord.FindAllString(text, -1)) >= 3
			}
			return !yes
		})
	}
	return yes
}
