// SPDX-License-Identifier: Apache-2.0

package docs

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// figures are the counts of a page.
type figures struct{ words, headings, blocks, firstExample int }

// measure counts headings, code blocks, and the words outside both. Comments are excluded.
func measure(page string) figures {
	f := figures{firstExample: -1}
	page = regexp.MustCompile(`(?s)<!--.*?-->\n*`).ReplaceAllString(page, "")
	word, inside := regexp.MustCompile(`[\pL\pN]+[\pL\pN'’._/-]*`), false
	for i, line := range strings.Split(page, "\n") {
		switch {
		case strings.HasPrefix(strings.TrimSpace(line), "```"):
			if inside = !inside; inside {
				f.blocks++
				if f.firstExample < 0 {
					f.firstExample = i + 1
				}
			}
		case inside:
		case strings.HasPrefix(line, "#"):
			f.headings++
		default:
			f.words += len(word.FindAllString(line, -1))
		}
	}
	return f
}

// Tutorials and how-to guides have an example in the first ten lines, at most 90 words per heading, and at least 8
// code blocks per 1,000 words.
func TestGuidesHaveExamples(t *testing.T) {
	checked := 0
	for _, name := range pages(t) {
		if kind := filepath.Base(filepath.Dir(name)); kind != "tutorials" && kind != "how-to" {
			continue
		}
		text, err := os.ReadFile(name)
		require.NoError(t, err)
		f := measure(string(text))
		checked++
		require.Positive(t, f.headings, name)
		require.Positive(t, f.blocks, name)
		require.LessOrEqual(t, f.firstExample, 10, "%s: the first example is in line %d", name, f.firstExample)
		require.LessOrEqual(t, f.words, 90*f.headings, "%s: %d words, %d headings", name, f.words, f.headings)
		require.GreaterOrEqual(t, 1000*f.blocks, 8*f.words, "%s: %d code blocks, %d words", name, f.blocks, f.words)
	}
	require.Greater(t, checked, 25)
}

func TestMeasureExcludesBlocksAndComments(t *testing.T) {
	page := "# A title\n\nThree words here.\n\n```sh\nnot counted\n```\n\n<!-- test\ntrue\n-->\n\n## More\n\nOne-word\n"
	require.Equal(t, figures{words: 4, headings: 2, blocks: 1, firstExample: 5}, measure(page))
}
