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
	// DiskWritten is what the process had the system write to disks, in MB.
	DiskWritten float64 `json:"disk_written_mb"`
}

// meter reads what processes used since it was made. Where the system does not tell, all is 0.
type meter struct {
	pids  map[string]int
	begin map[string]Usage
}

func newMeter(processes map[string]int) *meter {
	m := &meter{pids: maps.Clone(processes), begin: make(map[string]Usage)}
	if m.pids == nil {
		m.pids = make(map[string]int)
	}
	m.pids["client"] = os.Getpid()
	for name, pid := range m.pids {
		m.begin[name] = readUsage(pid)
	}
	return m
}

// used returns the usage of each process, by name.
func (m *meter) used() []Usage {
	var out []Usage
	for _, name := range slices.Sorted(maps.Keys(m.pids)) {
		u, before := readUsage(m.pids[name]), m.begin[name]
		u.Name = name
		u.CPU -= before.CPU
		u.DiskWritten -= before.DiskWritten
		out = append(out, u)
	}
	return out
}
