// SPDX-License-Identifier: Apache-2.0

//go:build unix

package docs

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/test/cluster"
	"github.com/lockstep-mq/lockstep/test/harness"
)

// step is a block of a document: a file to write, or a shell script to run.
type step struct{ file, text string }

// steps returns the steps of a document in order. Shell scripts begin with ```sh, but not with ```sh norun, and may be
// indented in a list. Files have a title. A comment that begins with <!-- test is a script that only the test runs.
func steps(document string) []step {
	const fence = "(?ms)^ *```(?:sh|[a-z]+ title=\"([^\"]+)\")\n(.*?)\n *```$"
	const hidden = `^<!-- test\n(.*?)\n-->$`
	var found []step
	for _, m := range regexp.MustCompile(fence+"|"+hidden).FindAllStringSubmatch(document, -1) {
		found = append(found, step{file: m[1], text: m[2] + m[3]})
	}
	return found
}

// The steps of README.md and of the quick start succeed, each page with a new pair. The deep tier runs the steps of all
// pages.
func TestShellBlocks(t *testing.T) {
	ran := runPages(t, filepath.Join(top, "README.md"), filepath.Join(top, "docs", "tutorials", "quick-start.md"))
	require.GreaterOrEqual(t, ran, 8)
}

// runPages runs the steps of pages, each page with a new pair, and returns the number of steps.
func runPages(t *testing.T, names ...string) int {
	t.Helper()
	binary, err := cluster.Build(t.Context(), t.TempDir())
	require.NoError(t, err)
	ran := 0
	for _, name := range names {
		text, err := os.ReadFile(name)
		require.NoError(t, err)
		list := steps(string(text))
		if !slices.ContainsFunc(list, func(s step) bool { return s.file == "" }) {
			continue
		}
		ran += len(list)
		t.Run(strings.TrimPrefix(name, filepath.Clean(top)+"/"), func(t *testing.T) {
			t.Parallel()
			p, err := harness.Start(t.Context(), harness.Options{
				Binary: binary, Dir: t.TempDir(), Settings: harness.SmallNodes(),
			})
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, p.Close()) })
			ready, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			require.NoError(t, p.WaitReady(ready, nil))
			repoRoot := t.TempDir()
			env := append(environment(binary), "HOME="+repoRoot, "LOCKSTEP_ADDR="+strings.Join(p.Addresses(), ","))
			runSteps(t, repoRoot, list, env)
		})
	}
	return ran
}

// environment returns the environment of the steps. It includes the source directory, for programs that import the
// client.
func environment(binary string) []string {
	source, err := filepath.Abs(top)
	if err != nil {
		panic(err)
	}
	return append(harness.Environment(), "LOCKSTEP_SOURCE="+source,
		"PATH="+filepath.Dir(binary)+string(os.PathListSeparator)+os.Getenv("PATH"))
}

// runSteps runs the steps in dir, in sequence. Background processes end with the test.
func runSteps(t *testing.T, dir string, list []step, env []string) {
	t.Helper()
	for i, s := range list {
		if s.file != "" {
			name := filepath.Join(dir, s.file)
			require.NoError(t, os.MkdirAll(filepath.Dir(name), 0o755))
			require.NoError(t, os.WriteFile(name, []byte(s.text+"\n"), 0o600))
			continue
		}
		output, err := os.Create(filepath.Join(t.TempDir(), "output"))
		require.NoError(t, err)
		cmd := exec.CommandContext(t.Context(), "sh", "-e", "-c", s.text)
		cmd.Dir, cmd.Env = dir, env
		cmd.Stdout, cmd.Stderr = output, output
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		err = cmd.Run()
		group := cmd.Process.Pid
		t.Cleanup(func() { _ = syscall.Kill(-group, syscall.SIGKILL) })
		printed, readErr := os.ReadFile(output.Name())
		require.NoError(t, readErr)
		require.NoError(t, output.Close())
		require.NoError(t, err, "step %d:\n%s\n%s", i+1, s.text, printed)
		t.Logf("step %d:\n%s\n%s", i+1, s.text, printed)
	}
}
