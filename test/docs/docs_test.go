// Package docs holds what the documents say against the source: settings and their defaults, links, and the names of
// files and functions.
package docs

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/server/config"
)

const top = "../.."

var update = flag.Bool("update", false, "write the table of settings into README.md")

// settings gives a table of all settings, in the order of the struct.
func settings() string {
	var b strings.Builder
	b.WriteString("| setting | default | meaning |\n|---|---|---|\n")
	var walk func(prefix string, v reflect.Value)
	walk = func(prefix string, v reflect.Value) {
		for i := range v.NumField() {
			f := v.Type().Field(i)
			key := f.Tag.Get("koanf")
			if key == "" || key == "-" {
				continue
			}
			usage := f.Tag.Get("usage")
			if usage == "" {
				walk(prefix+key+".", v.Field(i))
				continue
			}
			value := strings.Trim(fmt.Sprint(v.Field(i).Interface()), "[]")
			if value != "" {
				value = "`" + value + "`"
			}
			fmt.Fprintf(&b, "| `%s%s` | %s | %s |\n", prefix, key, value, strings.ReplaceAll(usage, "|", "\\|"))
		}
	}
	walk("", reflect.ValueOf(config.Default()))
	return b.String()
}

// TestReadmeListsEverySetting; `go test ./test/docs -update` writes the table.
func TestReadmeListsEverySetting(t *testing.T) {
	name := filepath.Join(top, "README.md")
	b, err := os.ReadFile(name)
	require.NoError(t, err)
	const begin, end = "<!-- settings -->\n", "<!-- end of settings -->"
	before, rest, ok := strings.Cut(string(b), begin)
	require.True(t, ok)
	table, after, ok := strings.Cut(rest, end)
	require.True(t, ok)
	if *update {
		require.NoError(t, os.WriteFile(name, []byte(before+begin+settings()+end+after), 0o644))
		return
	}
	require.Equal(t, settings(), table, "run: go test ./test/docs -update")
}

func documents(t *testing.T) map[string]string {
	t.Helper()
	docs := map[string]string{}
	for _, pattern := range []string{"*.md", "*/*.md", "docs/decisions/*.md"} {
		names, err := filepath.Glob(filepath.Join(top, pattern))
		require.NoError(t, err)
		for _, name := range names {
			b, err := os.ReadFile(name)
			require.NoError(t, err)
			docs[name] = string(b)
		}
	}
	require.Contains(t, docs, filepath.Join(top, "ARCHITECTURE.md"))
	return docs
}

func TestLinksLeadSomewhere(t *testing.T) {
	link := regexp.MustCompile(`\]\(([^)\s]+)\)`)
	for name, text := range documents(t) {
		for _, m := range link.FindAllStringSubmatch(text, -1) {
			target, fragment, _ := strings.Cut(m[1], "#")
			if strings.Contains(target, "://") {
				continue
			}
			if target == "" {
				require.Contains(t, anchors(text), fragment, "%s links to #%s", name, fragment)
				continue
			}
			_, err := os.Stat(filepath.Join(filepath.Dir(name), target))
			require.NoError(t, err, "%s links to %s", name, target)
		}
	}
}

// anchors of the headings, as GitHub makes them.
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

// TestReadingTheSourceNamesWhatIsThere: a line "`func` in [file](file)" of ARCHITECTURE.md has to be true.
func TestReadingTheSourceNamesWhatIsThere(t *testing.T) {
	text := documents(t)[filepath.Join(top, "ARCHITECTURE.md")]
	named := regexp.MustCompile("`([A-Za-z.]+)`,? in \\[([^]]+)\\]\\(([^)]+\\.go)\\)")
	found := named.FindAllStringSubmatch(text, -1)
	require.NotEmpty(t, found)
	for _, m := range found {
		name := m[1][strings.LastIndex(m[1], ".")+1:]
		b, err := os.ReadFile(filepath.Join(top, m[3]))
		require.NoError(t, err)
		declared := regexp.MustCompile(`(?m)^(func (\([^)]+\) )?|type |\t)` + name + `\b`)
		require.True(t, declared.Match(b), "%s is not in %s", m[1], m[3])
	}
}

// TestVariablesOfTheDeployment: what the image, the compose file and the unit set are settings.
func TestVariablesOfTheDeployment(t *testing.T) {
	known := map[string]bool{}
	flags := pflag.NewFlagSet("serve", pflag.ContinueOnError)
	config.RegisterFlags(flags)
	flags.VisitAll(func(f *pflag.Flag) {
		known["LOCKSTEP_"+strings.ToUpper(strings.ReplaceAll(f.Name, "-", "_"))] = true
	})
	for _, name := range []string{"Dockerfile", "compose.yaml", "lockstep.service"} {
		b, err := os.ReadFile(filepath.Join(top, "deploy", name))
		require.NoError(t, err)
		for _, v := range regexp.MustCompile(`LOCKSTEP_[A-Z_]+`).FindAllString(string(b), -1) {
			require.True(t, known[v], "%s sets %s, which is no setting", name, v)
		}
	}
}
