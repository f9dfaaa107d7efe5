// SPDX-License-Identifier: Apache-2.0

//go:build unix && deep

package hostile

import (
	"bufio"
	"bytes"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func gauge(t *testing.T, address, name string) float64 {
	t.Helper()
	resp, err := http.Get("http://" + address + "/metrics")
	require.NoError(t, err)
	defer func() { _ = resp.Body.Close() }()
	lines := bufio.NewScanner(resp.Body)
	for lines.Scan() {
		if text, ok := strings.CutPrefix(lines.Text(), name+" "); ok {
			v, err := strconv.ParseFloat(text, 64)
			require.NoError(t, err)
			return v
		}
	}
	t.Fatalf("no metric %s", name)
	return 0
}

// peakMemory returns the peak resident memory of a process.
func peakMemory(t *testing.T, pid int) int64 {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Skip("the memory of a process cannot be read on this system")
	}
	for line := range strings.Lines(string(status)) {
		if text, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			kib, err := strconv.ParseInt(strings.Fields(text)[0], 10, 64)
			require.NoError(t, err)
			return kib << 10
		}
	}
	t.Fatal("no VmHWM")
	return 0
}

// openFiles returns the number of open files of a process, by kind, or nil if unavailable. It excludes log segments,
// because their number grows until a checkpoint releases the oldest segments.
func openFiles(pid int) map[string]int {
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil
	}
	opened := map[string]int{}
	for _, e := range entries {
		name, err := os.Readlink(filepath.Join(dir, e.Name()))
		if err != nil || filepath.Ext(name) == ".seg" || filepath.Ext(name) == ".spare" {
			continue // closed in the meantime, or a log segment
		}
		kind, _, _ := strings.Cut(name, ":[") // socket:[4711]
		opened[kind]++
	}
	return opened
}

// count returns the total number of open files.
func count(opened map[string]int) (n int) {
	for _, k := range opened {
		n += k
	}
	return n
}

// processorTime returns the CPU time of a process.
func processorTime(t *testing.T, pid int) time.Duration {
	t.Helper()
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0 // not available on this system
	}
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	var ticks int64
	for _, field := range fields[11:13] { // utime, stime
		n, err := strconv.ParseInt(field, 10, 64)
		require.NoError(t, err)
		ticks += n
	}
	return time.Duration(ticks) * (time.Second / 100) // USER_HZ is 100 wherever Go runs
}
