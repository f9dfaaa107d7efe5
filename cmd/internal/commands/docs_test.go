// SPDX-License-Identifier: Apache-2.0

package commands_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Each command named in the documentation exists.
func TestDocsNameCommands(t *testing.T) {
	const top = "../../.."
	names := []string{filepath.Join(top, "README.md"), filepath.Join(top, "deploy", "node.yaml")}
	require.NoError(t, filepath.WalkDir(filepath.Join(top, "docs"), func(name string, _ fs.DirEntry, err error) error {
		if filepath.Ext(name) == ".md" && filepath.Base(filepath.Dir(name)) != "decisions" {
			names = append(names, name)
		}
		return err
	}))
	span := regexp.MustCompile("`lockstep ([^`\n]+)`|(?m)^(?: {4}|  )?lockstep (.+)$")
	word := regexp.MustCompile(`^[a-z][a-z|-]*$`)
	root := newRoot()
	root.InitDefaultCompletionCmd() // as cobra does before it runs a command
	found := 0
	for _, name := range names {
		b, err := os.ReadFile(name)
		require.NoError(t, err)
		for _, m := range span.FindAllStringSubmatch(string(b), -1) {
			words := strings.Fields(strings.ReplaceAll(m[1]+m[2], `\|`, "|"))
			if !word.MatchString(words[0]) {
				continue
			}
			group, _, err := root.Find(words[:1])
			require.NoError(t, err, "%s: %s", name, m[0])
			found++
			if !group.HasSubCommands() || len(words) < 2 || !word.MatchString(words[1]) {
				continue
			}
			for one := range strings.SplitSeq(words[1], "|") {
				cmd, _, err := root.Find([]string{words[0], one})
				require.NoError(t, err, "%s: %s", name, m[0])
				require.NotEqual(t, group.CommandPath(), cmd.CommandPath(), "%s: %s has no %s", name, m[0], one)
			}
		}
	}
	require.Greater(t, found, 200)
}
