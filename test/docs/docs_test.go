// SPDX-License-Identifier: Apache-2.0

// Package docs compares the documentation with the source: settings and their defaults, links, and names of files and
// functions.
package docs

import (
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/server/config"
)

const top = "../.."

var update = flag.Bool("update", false, "write the generated parts of the documents")

// generated compares the part of a document between two markers with the expected text, or writes it with -update.
func generated(t *testing.T, document, marker, want string) {
	t.Helper()
	name := filepath.Join(top, document)
	b, err := os.ReadFile(name)
	require.NoError(t, err)
	begin, end := "<!-- "+marker+" -->\n", "<!-- end of "+marker+" -->"
	before, rest, ok := strings.Cut(string(b), begin)
	require.True(t, ok, "%s does not contain %s", document, begin)
	part, after, ok := strings.Cut(rest, end)
	require.True(t, ok, "%s does not contain %s", document, end)
	if *update {
		require.NoError(t, os.WriteFile(name, []byte(before+begin+want+end+after), 0o644))
		return
	}
	require.Equal(t, want, part, "run: go test ./test/docs -update")
}

func readFile(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(name)
	require.NoError(t, err)
	return string(b)
}

// settings returns a table for each group of settings, in the order of the struct.
func settings() string {
	var b strings.Builder
	group := "-"
	for _, s := range config.Settings() {
		own, _, isGroup := strings.Cut(s.Key, ".")
		if !isGroup {
			own = ""
		}
		if own != group {
			group = own
			if b.Len() > 0 {
				b.WriteString("\n")
			}
			if own != "" {
				fmt.Fprintf(&b, "## %s\n\n", own)
			} else {
				fmt.Fprintf(&b, "## %s\n\n", s.Key)
			}
			b.WriteString("| Setting | Type, range | Default | Running | Meaning |\n|---|---|---|---|---|\n")
		}
		value := s.Default
		if value != "" {
			value = "`" + value + "`"
		}
		kind := s.Type
		if s.Range != "" {
			kind += ": " + s.Range
		}
		fmt.Fprintf(&b, "| `%s`<br>`%s`<br>`%s` | %s | %s | %s | %s |\n", s.Key, s.Flag, s.Variable, kind, value,
			s.Running,
			strings.ReplaceAll(s.Usage, "|", "\\|"))
	}
	return b.String()
}

// The configuration reference lists every setting. `go test ./test/docs -update` writes the tables.
func TestConfigurationListsEverySetting(t *testing.T) {
	generated(t, "docs/reference/configuration.md", "settings", settings())
}

// docs/contributing/dependencies.md has exactly one row for each direct requirement in go.mod.
func TestDependenciesAreExplained(t *testing.T) {
	mod, err := os.ReadFile(filepath.Join(top, "go.mod"))
	require.NoError(t, err)
	var required []string
	for _, m := range regexp.MustCompile(`(?m)^\t(\S+) v\S+$`).FindAllStringSubmatch(string(mod), -1) {
		required = append(required, m[1])
	}
	require.NotEmpty(t, required)
	page := documents(t)[filepath.Join(top, "docs", "contributing", "dependencies.md")]
	var explained []string
	line := regexp.MustCompile(`(?m)^\| (\S+\.\S+) \| ([^|]+) \| ([^|]+) \| ([^|]+) \|$`)
	for _, m := range line.FindAllStringSubmatch(page, -1) {
		explained = append(explained, m[1])
	}
	require.ElementsMatch(t, required, explained)
}

func documents(t *testing.T) map[string]string {
	t.Helper()
	docs := map[string]string{}
	names := pages(t)
	for _, pattern := range []string{"*.md", "*/*.md"} {
		matches, err := filepath.Glob(filepath.Join(top, pattern))
		require.NoError(t, err)
		names = append(names, matches...)
	}
	for _, name := range names {
		b, err := os.ReadFile(name)
		require.NoError(t, err)
		docs[name] = string(b)
	}
	require.Contains(t, docs, filepath.Join(top, "ARCHITECTURE.md"))
	return docs
}

// pages returns the paths of all documents below docs.
func pages(t *testing.T) []string {
	t.Helper()
	var names []string
	require.NoError(t, filepath.WalkDir(filepath.Join(top, "docs"), func(name string, _ fs.DirEntry, err error) error {
		if filepath.Ext(name) == ".md" {
			names = append(names, name)
		}
		return err
	}))
	return names
}

// All links in documents lead to existing files and headings.
func TestLinksResolve(t *testing.T) {
	link, code := regexp.MustCompile(`\]\(([^)\s]+)\)`), regexp.MustCompile("(?s)```.*?\n```")
	all := documents(t)
	seen := 0
	for name, text := range all {
		for _, m := range link.FindAllStringSubmatch(code.ReplaceAllString(text, ""), -1) {
			target, fragment, _ := strings.Cut(m[1], "#")
			if strings.Contains(target, "://") || strings.HasPrefix(target, "mailto:") {
				continue
			}
			seen++
			file := filepath.Join(filepath.Dir(name), target)
			if target == "" {
				file = name
			}
			if pending(file) {
				continue
			}
			_, err := os.Stat(file)
			require.NoError(t, err, "%s links to %s", name, target)
			if fragment == "" || strings.HasPrefix(fragment, "L") && !strings.HasSuffix(file, ".md") {
				continue
			}
			there, known := all[file]
			require.True(t, known, "%s links to #%s in %s, which is not a document", name, fragment, target)
			require.Contains(t, anchors(there), fragment, "%s links to %s", name, m[1])
		}
	}
	require.Greater(t, seen, 200)
}

// pending reports whether a file belongs to docs/how-to or docs/tutorials while that directory does not exist.
func pending(file string) bool {
	for _, dir := range []string{"how-to", "tutorials"} {
		dir = filepath.Join(top, "docs", dir)
		_, err := os.Stat(dir)
		if err != nil && strings.HasPrefix(file, dir+string(filepath.Separator)) {
			return true
		}
	}
	return false
}

// No empty line splits a table.
func TestTablesAreComplete(t *testing.T) {
	separator := regexp.MustCompile(`^\|[-: |]+\|$`)
	for name, text := range documents(t) {
		lines := strings.Split(text, "\n")
		for i := 3; i < len(lines); i++ {
			if strings.HasPrefix(lines[i-3], "|") && lines[i-2] == "" && strings.HasPrefix(lines[i-1], "|") {
				require.Regexp(t, separator, lines[i], "%s:%d is a row without a table", name, i)
			}
		}
	}
}

// docs/index.md links to every page of the site, with a description. The decisions have a separate index.
func TestIndexListsEveryPage(t *testing.T) {
	index := documents(t)[filepath.Join(top, "docs", "index.md")]
	for _, name := range pages(t) {
		rel, err := filepath.Rel(filepath.Join(top, "docs"), name)
		require.NoError(t, err)
		if rel != "index.md" && !strings.HasPrefix(rel, "decisions/0") {
			require.Regexp(t, `\]\(`+regexp.QuoteMeta(rel)+`(#[a-z-]+)?\)[^|\n]*[:|] *\S`, index,
				"%s is not in docs/index.md", rel)
		}
	}
}

// anchors returns the anchors of the headings, in GitHub's format.
func anchors(text string) []string {
	var out []string
	for line := range strings.Lines(text) {
		if heading := strings.TrimLeft(line, "#"); heading != line {
			anchor := strings.ToLower(strings.TrimSpace(heading))
			anchor = regexp.MustCompile(`[^a-z0-9 _-]`).ReplaceAllString(anchor, "")
			out = append(out, strings.ReplaceAll(anchor, " ", "-"))
		}
	}
	return out
}

// Each function named in ARCHITECTURE.md or CONTRIBUTING.md as "`func`, in [file](file)" exists in that file.
func TestSourceGuideNamesExist(t *testing.T) {
	all := documents(t)
	named := regexp.MustCompile("`([A-Za-z.]+)`,? in \\[([^]]+)\\]\\(([^)]+\\.(?:go|proto))\\)")
	var found [][]string
	for _, document := range []string{"ARCHITECTURE.md", "CONTRIBUTING.md"} {
		names := named.FindAllStringSubmatch(all[filepath.Join(top, document)], -1)
		require.NotEmpty(t, names, document)
		found = append(found, names...)
	}
	for _, m := range found {
		name := m[1][strings.LastIndex(m[1], ".")+1:]
		b, err := os.ReadFile(filepath.Join(top, m[3]))
		require.NoError(t, err)
		declared := regexp.MustCompile(`(?m)^(func (\([^)]+\) )?|type |message |\t)` + name + `\b`)
		require.True(t, declared.Match(b), "%s is not in %s", m[1], m[3])
	}
}

// CONTRIBUTING.md lists at most four places to change for each kind of extension, and their files exist.
func TestExtensionPointsExist(t *testing.T) {
	_, text, ok := strings.Cut(documents(t)[filepath.Join(top, "CONTRIBUTING.md")], "## Where things are added\n")
	require.True(t, ok)
	text, _, _ = strings.Cut(text, "\n## ")
	kind, locations := "", map[string]int{}
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "**") {
			kind, _, _ = strings.Cut(strings.TrimPrefix(line, "**"), "**")
		} else if number, _, item := strings.Cut(line, ". "); item && len(number) == 1 {
			locations[kind]++
			require.LessOrEqual(t, locations[kind], 4, kind)
			require.Contains(t, line, "](", "%s, %s: no link to a file", kind, number)
		}
	}
	for _, kind := range []string{
		"A log operation", "An RPC", "An error reason", "A condition", "A setting", "A queue option",
		"A coordinator", "A command",
	} {
		require.NotZero(t, locations[kind], kind)
	}
}

// All variables in the image, the Compose file and the systemd unit are settings.
func TestDeploymentUsesExistingVariables(t *testing.T) {
	known := map[string]bool{"LOCKSTEP_CLIENT_TLS_CERT": true} // variable of the command line, for the health check
	flags := pflag.NewFlagSet("serve", pflag.ContinueOnError)
	config.RegisterFlags(flags)
	flags.VisitAll(func(f *pflag.Flag) {
		known["LOCKSTEP_"+strings.ToUpper(strings.ReplaceAll(f.Name, "-", "_"))] = true
	})
	for _, name := range []string{"Dockerfile", "compose.yaml", "lockstep.service"} {
		b, err := os.ReadFile(filepath.Join(top, "deploy", name))
		require.NoError(t, err)
		for _, v := range regexp.MustCompile(`LOCKSTEP_[A-Z_]+`).FindAllString(string(b), -1) {
			require.True(t, known[v], "%s sets %s, which is not a setting", name, v)
		}
	}
}

// The Compose file is valid for docker-compose 1.29, which does not support the element `name`.
func TestComposeFileHasNoName(t *testing.T) {
	b, err := os.ReadFile(filepath.Join(top, "deploy", "compose.yaml"))
	require.NoError(t, err)
	require.NotRegexp(t, `(?m)^name:`, string(b))
}

// The changelog has no duplicate entries. A merge that keeps both versions of a list would create them.
func TestChangelogHasNoDuplicates(t *testing.T) {
	b, err := os.ReadFile(filepath.Join(top, "CHANGELOG.md"))
	require.NoError(t, err)
	seen := map[string]bool{}
	for entry := range strings.Lines(string(b)) {
		if strings.HasPrefix(entry, "- ") {
			begin := entry[:min(len(entry), 60)]
			require.False(t, seen[begin], "two entries begin with %q", begin)
			seen[begin] = true
		}
	}
	require.Greater(t, len(seen), 100)
}

// No page contains a block of several lines twice, as after a merge that duplicates a section's commands.
func TestPagesHaveNoDuplicateBlocks(t *testing.T) {
	block := regexp.MustCompile("(?ms)^```[^\n]*\n(.*?)\n```$")
	checked := 0
	for name, text := range documents(t) {
		seen := map[string]bool{}
		for _, m := range block.FindAllStringSubmatch(text, -1) {
			if strings.Count(m[1], "\n") < 2 {
				continue
			}
			require.False(t, seen[m[1]], "%s contains this block twice:\n%s", name, m[1])
			seen[m[1]] = true
			checked++
		}
	}
	require.Greater(t, checked, 50)
}
