// SPDX-License-Identifier: Apache-2.0

//go:build unix

package docs

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/test/cluster"
	"github.com/lockstep-mq/lockstep/test/harness"
)

// blocks returns the shell blocks of a document that are to be run, in order: those that begin with ```sh, and not with
// ```sh norun. They may be indented, as parts of a list.
func blocks(document string) []string {
	var found []string
	for _, m := range regexp.MustCompile("(?m)^ *```sh\n((?s:.*?))\n *```$").FindAllStringSubmatch(document, -1) {
		found = append(found, m[1])
	}
	return found
}

// TestShellBlocks: what README.md and the documents below docs have the reader type works, block after block, with a
// pair as `lockstep dev` runs it.
func TestShellBlocks(t *testing.T) {
	binary, err := cluster.Build(t.Context(), t.TempDir())
	require.NoError(t, err)
	ran := 0
	for _, name := range append(pages(t), filepath.Join(top, "README.md")) {
		text, err := os.ReadFile(name)
		require.NoError(t, err)
		list := blocks(string(text))
		if len(list) == 0 {
			continue
		}
		ran += len(list)
		t.Run(strings.TrimPrefix(name, filepath.Clean(top)+"/"), func(t *testing.T) {
			t.Parallel()
			runBlocks(t, binary, list)
		})
	}
	require.GreaterOrEqual(t, ran, 14)
}

// runBlocks runs shell blocks one after the other, in one directory and with one new pair.
func runBlocks(t *testing.T, binary string, list []string) {
	t.Helper()
	p, err := harness.Start(t.Context(), harness.Options{
		Binary: binary, Dir: t.TempDir(), Settings: harness.SmallNodes(),
	})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Close()) })
	ready, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	require.NoError(t, p.WaitReady(ready, nil))
	home := t.TempDir()
	env := append(harness.Environment(), "HOME="+home, "LOCKSTEP_ADDR="+strings.Join(p.Addresses(), ","),
		"PATH="+filepath.Dir(binary)+string(os.PathListSeparator)+os.Getenv("PATH"))
	for i, block := range list {
		output, err := os.Create(filepath.Join(t.TempDir(), "output"))
		require.NoError(t, err)
		cmd := exec.CommandContext(t.Context(), "sh", "-e", "-c", block)
		cmd.Dir, cmd.Env = home, env
		cmd.Stdout, cmd.Stderr = output, output
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		err = cmd.Run()
		// What the block has started in the background ends with it.
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		said, readErr := os.ReadFile(output.Name())
		require.NoError(t, readErr)
		require.NoError(t, output.Close())
		require.NoError(t, err, "block %d:\n%s\n%s", i+1, block, said)
	}
}
