// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"maps"
	"os"
	"slices"
)

// Usage is the resource usage of one process.
type Usage struct {
	// Name is the name of the process in Target.Processes, such as "a", or "client".
	Name string `json:"name"`
	// CPU is the CPU time in seconds, user and system.
	CPU float64 `json:"cpu_s"`
	// System is the part of CPU that the kernel used.
	System float64 `json:"cpu_system_s"`
	// RSS is the resident memory in MB (10^6 bytes).
	RSS float64 `json:"rss_mb"`
	// PeakRSS is the peak of RSS since ResetPeaks, or since the start of the process.
	PeakRSS float64 `json:"rss_peak_mb"`
	// Virtual is the mapped memory in MB.
	Virtual float64 `json:"virtual_mb"`
	// Dirtied is the page cache dirtied by the process, in MB, as counted by the system. With large folios, the system
	// counts a whole folio, up to 2 MiB, for each byte written to it.
	Dirtied float64 `json:"dirtied_mb"`
	// Read and Written are the file bytes read and written, in MB, including those served by the page cache.
	Read    float64 `json:"file_read_mb"`
	Written float64 `json:"file_written_mb"`
}

const clientName = "client"

// Meter measures the usage of processes since its creation. All values are 0 if the system does not provide them.
type Meter struct {
	pids    map[string]int
	begin   map[string]Usage
	dir     string
	written float64
}

// NewMeter starts measuring the processes, this process, and the disk that contains dir, if dir is not empty.
func NewMeter(processes map[string]int, dir string) *Meter {
	m := &Meter{pids: maps.Clone(processes), begin: make(map[string]Usage), dir: dir, written: deviceWritten(dir)}
	if m.pids == nil {
		m.pids = make(map[string]int)
	}
	m.pids[clientName] = os.Getpid()
	for name, pid := range m.pids {
		m.begin[name] = readUsage(pid)
	}
	return m
}

// Self returns this process as an argument of ResetPeaks.
func Self() map[string]int { return map[string]int{clientName: os.Getpid()} }

// ResetPeaks resets PeakRSS of the processes, where the system supports it.
func ResetPeaks(processes map[string]int) {
	for _, pid := range processes {
		resetPeak(pid)
	}
}

// diskWritten returns the amount that all processes wrote to the disk since NewMeter, in MB.
func (m *Meter) diskWritten() float64 { return deviceWritten(m.dir) - m.written }

// Used returns the usage of each process since NewMeter, sorted by name.
func (m *Meter) Used() []Usage {
	var out []Usage
	for _, name := range slices.Sorted(maps.Keys(m.pids)) {
		u, before := readUsage(m.pids[name]), m.begin[name]
		u.Name = name
		u.CPU -= before.CPU
		u.System -= before.System
		u.Dirtied -= before.Dirtied
		u.Read -= before.Read
		u.Written -= before.Written
		out = append(out, u)
	}
	return out
}
