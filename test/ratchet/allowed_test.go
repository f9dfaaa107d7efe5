// SPDX-License-Identifier: Apache-2.0

package ratchet

import (
	"bufio"
	"bytes"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const root = "../.."

var updateFlag = flag.Bool("update", false, "lower the allowed counts in testdata to the current ones")

// finding is one counted occurrence.
type finding struct {
	line int
	what string
}

// check compares the findings of each file with the counts that testdata/name allows.
func check(t *testing.T, name string, found map[string][]finding) {
	t.Helper()
	path := filepath.Join("testdata", name)
	allowed := readAllowed(t, path)
	lower := map[string]int{}
	for file, all := range found {
		if len(all) <= allowed[file] {
			lower[file] = len(all)
			continue
		}
		lower[file] = allowed[file]
		var list strings.Builder
		for _, f := range all {
			fmt.Fprintf(&list, "\n  %s:%d: %s", file, f.line, f.what)
		}
		t.Errorf("%s: %d findings, %d allowed:%s", file, len(all), allowed[file], list.String())
	}
	if *updateFlag {
		writeAllowed(t, path, lower)
	}
}

// readAllowed reads the allowed counts: lines with a count and a file name.
func readAllowed(t *testing.T, path string) map[string]int {
	t.Helper()
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	allowed := map[string]int{}
	for lines := bufio.NewScanner(bytes.NewReader(data)); lines.Scan(); {
		count, file, ok := strings.Cut(lines.Text(), " ")
		require.True(t, ok, "%s: %q", path, lines.Text())
		n, err := strconv.Atoi(count)
		require.NoError(t, err, "%s: %q", path, lines.Text())
		allowed[file] = n
	}
	return allowed
}

func writeAllowed(t *testing.T, path string, allowed map[string]int) {
	t.Helper()
	var out bytes.Buffer
	for _, file := range slices.Sorted(maps.Keys(allowed)) {
		if allowed[file] > 0 {
			fmt.Fprintf(&out, "%d %s\n", allowed[file], file)
		}
	}
	require.NoError(t, os.WriteFile(path, out.Bytes(), 0o644))
}

// files returns the files of the repository, relative to its root.
func files(t *testing.T) []string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "git", "-C", root, "ls-files", "--cached", "--others",
		"--exclude-standard").Output()
	if err != nil {
		t.Skip("not a git checkout")
	}
	all := strings.Fields(string(out))
	return slices.DeleteFunc(all, func(f string) bool {
		_, err := os.Stat(filepath.Join(root, f))
		return err != nil
	})
}
