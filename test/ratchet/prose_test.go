// SPDX-License-Identifier: Apache-2.0

package ratchet

import (
	"go/scanner"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// literary returns the words, and phrases of up to three words, in testdata/words.txt.
func literary(t *testing.T) map[string]bool {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", "words.txt"))
	require.NoError(t, err)
	phrases := map[string]bool{}
	for phrase := range strings.Lines(string(data)) {
		phrases[strings.TrimSpace(phrase)] = true
	}
	return phrases
}

var wordPattern = regexp.MustCompile(`[A-Za-z]+`)

// literaryIn returns the words and phrases that occur in a text.
func literaryIn(phrases map[string]bool, text string) (found []string) {
	words := wordPattern.FindAllString(strings.ToLower(text), -1)
	for i := range words {
		for n := 1; n <= 3 && i+n <= len(words); n++ {
			if phrase := strings.Join(words[i:i+n], " "); phrases[phrase] {
				found = append(found, phrase)
			}
		}
	}
	return found
}

// No file has more literary words in comments, strings and documents than allowed.
func TestProse(t *testing.T) {
	found, phrases := map[string][]finding{}, literary(t)
	for _, name := range files(t) {
		if strings.Contains(name, "testdata/") || strings.HasSuffix(name, ".pb.go") || name == "CHANGELOG.md" ||
			strings.HasPrefix(name, "test/ratchet/") {
			continue
		}
		var lines map[int]string
		switch filepath.Ext(name) {
		case ".go":
			lines = goProse(t, name)
		case ".md":
			lines = markdownProse(t, name)
		case ".proto":
			lines = protoProse(t, name)
		}
		for line, text := range lines {
			for _, phrase := range literaryIn(phrases, text) {
				found[name] = append(found[name], finding{line, phrase})
			}
		}
	}
	require.NotEmpty(t, found)
	check(t, "prose.txt", found)
}

func read(t *testing.T, name string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(root, name))
	require.NoError(t, err)
	return string(data)
}

// goProse returns the comments and string literals of a Go file, by line.
func goProse(t *testing.T, name string) map[int]string {
	t.Helper()
	source := []byte(read(t, name))
	lines := map[int]string{}
	fset := token.NewFileSet()
	file := fset.AddFile(name, fset.Base(), len(source))
	var s scanner.Scanner
	s.Init(file, source, nil, scanner.ScanComments)
	for {
		pos, tok, text := s.Scan()
		switch tok {
		case token.EOF:
			return lines
		case token.COMMENT:
		case token.STRING:
			if unquoted, err := strconv.Unquote(text); err == nil {
				text = unquoted
			}
			if !strings.Contains(text, " ") {
				continue
			}
		default:
			continue
		}
		lines[fset.Position(pos).Line] += " " + text
	}
}

// markdownProse returns the lines of a Markdown file outside of code blocks.
func markdownProse(t *testing.T, name string) map[int]string {
	t.Helper()
	lines, n, code := map[int]string{}, 0, false
	for line := range strings.Lines(read(t, name)) {
		n++
		if strings.HasPrefix(strings.TrimSpace(line), "```") {
			code = !code
		} else if !code {
			lines[n] = line
		}
	}
	return lines
}

// protoProse returns the comments of a .proto file, by line.
func protoProse(t *testing.T, name string) map[int]string {
	t.Helper()
	lines, n := map[int]string{}, 0
	for line := range strings.Lines(read(t, name)) {
		n++
		if _, comment, ok := strings.Cut(line, "//"); ok {
			lines[n] = comment
		}
	}
	return lines
}
