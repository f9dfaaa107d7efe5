// SPDX-License-Identifier: Apache-2.0

package docs

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/server/config"
)

// settingsIn returns the settings in a file, including those that are commented out.
func settingsIn(file string) map[string]bool {
	type group struct {
		name   string
		indent int
	}
	key := regexp.MustCompile(`^[a-z][a-z0-9-]*:`)
	found, in := map[string]bool{}, []group(nil)
	for line := range strings.Lines(file) {
		text, indent := strings.TrimRight(line, "\n"), 0
		for {
			rest := strings.TrimLeft(text, " ")
			indent += len(text) - len(rest)
			var comment bool
			if text, comment = strings.CutPrefix(rest, "# "); !comment {
				break
			}
		}
		name := strings.TrimSuffix(key.FindString(text), ":")
		if name == "" {
			continue
		}
		for len(in) > 0 && in[len(in)-1].indent >= indent {
			in = in[:len(in)-1]
		}
		path := ""
		for _, g := range in {
			path += g.name + "."
		}
		found[path+name] = true
		in = append(in, group{name, indent})
	}
	return found
}

// deploy/node.yaml contains every setting.
func TestNodeYAMLHasEverySetting(t *testing.T) {
	b, err := os.ReadFile(filepath.Join(top, "deploy", "node.yaml"))
	require.NoError(t, err)
	there := settingsIn(string(b))
	var missing []string
	for _, s := range config.Settings() {
		if !there[s.Key] {
			missing = append(missing, s.Key+": "+s.Default+" # "+s.Usage)
		}
	}
	require.Empty(t, missing)
}
