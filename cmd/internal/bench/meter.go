// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"maps"
	"os"
	"slices"
)

// Usage is what one process used.
type Usage struct {
	// Name of the process: "a", "b" or "client".
	Name string `json:"name"`
	// CPU time in seconds, of user and system.
	CPU float64 `json:"cpu_s"`
	// RSS is the resident memory in MB (10^6 bytes).
	RSS float64 `json:"rss_mb"`
	// RSSBefore is what RSS was when the measurement began, and PeakRSS the most it has been since (pagesize), or ever
	// was.
	RSSBefore float64 `json:"rss_before_mb"`
	PeakRSS   float64 `json:"rss_peak_mb"`
	// Virtual is the memory that is mapped, in MB, whether it is there or not.
	Virtual float64 `json:"virtual_mb"`
	// Dirtied is how much of the page cache the process dirtied, in MB, as the system counts it: a system that keeps
	// files in large folios counts a whole one, up to 2 MiB, for each byte that is written to it.
	Dirtied float64 `json:"dirtied_mb"`
	// Read and Written are what it read from files and wrote to them, in MB, the page cache being none of its business.
	Read    float64 `json:"file_read_mb"`
	Written float64 `json:"file_written_mb"`
}

// clientName is this process among the others.
const clientName = "client"

// Meter reads what processes used since it was made. Where the system does not tell, all is 0.
type Meter struct {
	pids    map[string]int
	Begin   map[string]Usage
	dir     string
	written float64
}

// NewMeter begins to measure the processes, this one, and the disk that holds dir, if that is not empty.
func NewMeter(processes map[string]int, dir string) *Meter {
	m := &Meter{pids: maps.Clone(processes), Begin: make(map[string]Usage), dir: dir, written: DeviceWritten(dir)}
	if m.pids == nil {
		m.pids = make(map[string]int)
	}
	m.pids[clientName] = os.Getpid()
	for name, pid := range m.pids {
		m.Begin[name] = readUsage(pid)
	}
	return m
}

// Self is this process, for resetPeaks.
func Self() map[string]int { return map[string]int{clientName: os.Getpid()} }

// ResetPeaks makes the peaks of the processes begin now.
func ResetPeaks(processes map[string]int) {
	for _, pid := range processes {
		resetPeak(pid)
	}
}

// diskWritten returns what was written to the disk, by whomever, in MB.
func (m *Meter) diskWritten() float64 { return DeviceWritten(m.dir) - m.written }

// Used returns the usage of each process, by name.
func (m *Meter) Used() []Usage {
	var out []Usage
	for _, name := range slices.Sorted(maps.Keys(m.pids)) {
		u, before := readUsage(m.pids[name]), m.Begin[name]
		u.Name = name
		u.CPU -= before.CPU
		u.Dirtied -= before.Dirtied
		u.Read -= before.Read
		u.Written -= before.Written
		u.RSSBefore = before.RSS
		out = append(out, u)
	}
	return out
}
