// SPDX-License-Identifier: Apache-2.0

//go:build deep && unix

package docs

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/test/cluster"
	"github.com/lockstep-mq/lockstep/test/harness"
)

// isTutorial reports whether a page is a tutorial that uses `lockstep dev`.
func isTutorial(name string) bool {
	return filepath.Base(filepath.Dir(name)) == "tutorials" && filepath.Base(name) != "quick-start.md"
}

// The steps of all pages below docs, except the tutorials, succeed, each page with a new pair.
func TestShellBlocksOfPages(t *testing.T) {
	ran := runPages(t, slices.DeleteFunc(pages(t), isTutorial)...)
	require.Greater(t, ran, 60)
}

// The steps of each tutorial succeed, with a pair started by `lockstep dev` in the reader's directory.
func TestTutorials(t *testing.T) {
	binary, err := cluster.Build(t.Context(), t.TempDir())
	require.NoError(t, err)
	needs := map[string]string{"python-client.md": "python3", "jms-client.md": "mvn"}
	ran := 0
	for _, name := range pages(t) {
		if !isTutorial(name) {
			continue
		}
		text, err := os.ReadFile(name)
		require.NoError(t, err)
		ran++
		t.Run(filepath.Base(name), func(t *testing.T) {
			if program := needs[filepath.Base(name)]; program != "" {
				if _, err := exec.LookPath(program); err != nil {
					t.Skip(err)
				}
			}
			dir := t.TempDir()
			text := startDev(t, binary, dir, devFlags(string(text))).Replace(string(text))
			list := steps(text)
			require.NotEmpty(t, list)
			addresses := regexp.MustCompile(`export LOCKSTEP_ADDR=\S+`).FindString(readFile(t, filepath.Join(dir, "dev.txt")))
			runSteps(t, dir, list, append(environment(binary), strings.TrimPrefix(addresses, "export ")))
		})
	}
	require.GreaterOrEqual(t, ran, 8)
}

// devFlags returns the flags of the command `lockstep dev` in a tutorial.
func devFlags(text string) []string {
	m := regexp.MustCompile(`(?m)^lockstep dev( --[^|\n]*)?(\||$)`).FindStringSubmatch(text)
	if m == nil {
		return nil
	}
	return strings.Fields(m[1])
}

// startDev runs `lockstep dev > dev.txt` in dir. It returns a replacer that converts the addresses in the tutorials to
// those of this pair, of both sites, or of the pairs of the fleet.
func startDev(t *testing.T, binary, dir string, flags []string) *strings.Replacer {
	t.Helper()
	a, err := harness.ReservePort()
	require.NoError(t, err)
	b, err := harness.ReservePort()
	require.NoError(t, err)
	require.NoError(t, a.Close())
	require.NoError(t, b.Close())
	output, err := os.Create(filepath.Join(dir, "dev.txt"))
	require.NoError(t, err)
	args := []string{"dev", "--listen-a", a.Address(), "--listen-b", b.Address(), "--console", ""}
	cmd := exec.Command(binary, append(args, flags...)...)
	cmd.Dir, cmd.Env = dir, harness.Environment()
	cmd.Stdout, cmd.Stderr = output, output
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
		_ = cmd.Wait()
		require.NoError(t, output.Close())
	})
	nodes := regexp.MustCompile(`node (?:west|pair-[23])/[ab] +(\S+)`)
	amqp := regexp.MustCompile(`amqp://(127.0.0.1:\d+),amqp://(127.0.0.1:\d+)`)
	var printed []byte
	require.Eventually(t, func() bool {
		printed, err = os.ReadFile(output.Name())
		require.NoError(t, err)
		return bytes.Contains(printed, []byte("kill -9")) && amqp.Match(printed)
	}, 5*time.Minute, 100*time.Millisecond)
	m := amqp.FindSubmatch(printed)
	pairs := []string{
		"127.0.0.1:7420", a.Address(), "127.0.0.1:7421", b.Address(),
		"127.0.0.1:5672", string(m[1]), "127.0.0.1:5673", string(m[2]),
	}
	for i, m := range nodes.FindAllSubmatch(printed, 4) {
		pairs = append(pairs, "127.0.0.1:"+strconv.Itoa(7422+i), string(m[1]))
	}
	return strings.NewReplacer(pairs...)
}
