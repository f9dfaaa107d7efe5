// SPDX-License-Identifier: Apache-2.0

package docs

import (
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/server/config"
)

// settingsIn returns the settings and groups in a file, with their line numbers. It includes settings that are
// commented out.
func settingsIn(file string) map[string]int {
	type group struct {
		name   string
		indent int
	}
	key := regexp.MustCompile(`^[a-z][a-z0-9-]*:`)
	found, in := map[string]int{}, []group(nil)
	for i, line := range strings.Split(file, "\n") {
		text, indent := line, 0
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
		parents := ""
		for _, g := range in {
			parents += g.name + "."
		}
		found[parents+name] = i
		in = append(in, group{name, indent})
	}
	return found
}

// deploy/node.yaml contains every setting. The flag -update adds a missing setting, with its usage and default, after
// its predecessor in the struct.
func TestNodeYAMLHasEverySetting(t *testing.T) {
	name := filepath.Join(top, "deploy", "node.yaml")
	file := readFile(t, name)
	var missing []string
	before := ""
	for _, s := range config.Settings() {
		if _, ok := settingsIn(file)[s.Key]; !ok {
			missing = append(missing, s.Key+": "+s.Default+" # "+s.Usage)
			if *update {
				file = withSetting(t, file, before, &s)
			}
		}
		before = s.Key
	}
	if *update && len(missing) > 0 {
		require.NoError(t, os.WriteFile(name, []byte(file), 0o644))
		return
	}
	require.Empty(t, missing, "run: go test ./test/docs -update")
}

// withSetting adds a setting, commented out, after another setting, which must be in the same group.
func withSetting(t *testing.T, file, before string, s *config.Setting) string {
	t.Helper()
	group, name := path.Split(strings.ReplaceAll(s.Key, ".", "/"))
	own, previous := path.Split(strings.ReplaceAll(before, ".", "/"))
	require.Equal(t, group, own, "add %s manually: it is the first setting of its group", s.Key)
	lines := strings.Split(file, "\n")
	at := settingsIn(file)[before]
	prefix, _, _ := strings.Cut(lines[at], previous+":")
	if !strings.Contains(prefix, "#") {
		prefix += "# "
	}
	return strings.Join(slices.Insert(lines, at+1, prefix+s.Usage, prefix+name+": "+s.Default), "\n")
}
