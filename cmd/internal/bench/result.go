// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// Result is one measurement. Latencies are in milliseconds; 1 MB is 10^6 bytes. Process figures cover the measurement,
// except memory, which is read at the end.
type Result struct {
	Workload      string `json:"workload"`
	Phase         string `json:"phase"`
	Setup         string `json:"setup"`
	Sync          string `json:"sync,omitempty"`
	Round         int    `json:"round"`
	Burst         int    `json:"burst,omitempty"`
	Median        bool   `json:"median,omitempty"` // the round with the median rate, with the spread over all rounds
	Case          string `json:"case,omitempty"`   // name of the comparison with a peer
	SizeBytes     int    `json:"size_bytes"`
	Queues        int    `json:"queues,omitempty"`
	Subscriptions int    `json:"subscriptions,omitempty"`
	Producers     int    `json:"producers,omitempty"`
	Publishers    int    `json:"publishers,omitempty"`
	Window        int    `json:"window,omitempty"`
	Consumers     int    `json:"consumers,omitempty"`
	Prefetch      int    `json:"prefetch,omitempty"`
	Filtered      bool   `json:"filtered,omitempty"` // the subscriptions have filters
	Batch         int    `json:"batch,omitempty"`

	Messages int     `json:"messages"`
	Seconds  float64 `json:"seconds"`
	Rate     float64 `json:"rate_per_s"`
	RateMin  float64 `json:"rate_min_per_s,omitempty"`
	RateMax  float64 `json:"rate_max_per_s,omitempty"`
	MB       float64 `json:"mb_per_s"`
	P50      float64 `json:"p50_ms"`
	P99      float64 `json:"p99_ms"`
	P999     float64 `json:"p999_ms"`
	Max      float64 `json:"max_ms"`

	// PageSize is the page size of page.db in bytes; 0 if the workload does not report it.
	PageSize int `json:"page_size,omitempty"`
	// Fraction is the minimum number of deliveries of a subscription as a fraction of the maximum.
	Fraction float64 `json:"share_min_of_max,omitempty"`
	Ratio    float64 `json:"ratio,omitempty"` // Rate divided by the rate of the baseline in Comment
	// CPURatio is the CPU time per message divided by that of the baseline in Comment.
	CPURatio float64 `json:"cpu_ratio,omitempty"`
	Comment  string  `json:"note,omitempty"`

	// ReadBytes and WrittenBytes are the bytes per message that this process read from and wrote to files, including
	// reads from the page cache.
	ReadBytes    float64 `json:"file_read_bytes_per_message,omitempty"`
	WrittenBytes float64 `json:"file_written_bytes_per_message,omitempty"`

	Stored int `json:"stored,omitempty"` // messages in the store before the measurement
	// StartMS is the time to open the store, or from starting the nodes until they are in sync.
	StartMS       float64 `json:"start_ms,omitempty"`
	QueueBytes    float64 `json:"heap_bytes_per_queue,omitempty"` // at the end of the phase
	DiskReadMB    float64 `json:"disk_read_mb_per_s,omitempty"`   // rate of a plain read of the same file
	BudgetMB      float64 `json:"memory_budget_mb,omitempty"`
	MemoryLimitMB float64 `json:"memory_limit_mb,omitempty"` // limit of the process and its page cache together

	Setting           string  `json:"knob,omitempty"` // the changed setting, and Value its value
	Value             string  `json:"value,omitempty"`
	Checkpoints       int     `json:"checkpoints,omitempty"`
	CheckpointsPerMin float64 `json:"checkpoints_per_min,omitempty"`
	VirtualMB         float64 `json:"virtual_mb,omitempty"` // maximum of the nodes
	LogMB             float64 `json:"log_mb,omitempty"`     // the active's log on disk, at the end

	CPU         float64 `json:"cpu_s"`           // of all processes
	RSS         float64 `json:"rss_mb"`          // of all processes
	PeakRSS     float64 `json:"rss_peak_mb"`     // maximum of the nodes; see Usage
	DiskWritten float64 `json:"disk_written_mb"` // by all processes to the disk that contains the data; 0 if unknown
	Processes   []Usage `json:"processes,omitempty"`
}

// Duration sets the fields derived from the time, the number of messages and the latencies.
func (r *Result) Duration(d time.Duration, messages int, h *hdrhistogram.Histogram) {
	r.Messages, r.Seconds = messages, d.Seconds()
	r.Rate = float64(messages) / max(r.Seconds, 1e-9)
	r.MB = r.Rate * float64(r.SizeBytes) / 1e6
	ms := func(us int64) float64 { return float64(us) / 1000 }
	r.P50, r.P99, r.P999, r.Max = ms(h.ValueAtQuantile(50)), ms(h.ValueAtQuantile(99)), ms(h.ValueAtQuantile(99.9)),
		ms(h.Max())
}

// Cost sets the fields with the resource usage since the creation of m.
func (r *Result) Cost(m *Meter) {
	r.Processes, r.DiskWritten = m.Used(), m.diskWritten()
	r.CPU, r.RSS, r.PeakRSS, r.VirtualMB = 0, 0, 0, 0
	for _, u := range r.Processes {
		r.CPU += u.CPU
		r.RSS += u.RSS
		if u.Name != clientName {
			r.PeakRSS, r.VirtualMB = max(r.PeakRSS, u.PeakRSS), max(r.VirtualMB, u.Virtual)
		}
	}
}

// CPUPerMessage returns the CPU time of all processes per message, in µs; 0 without messages.
func (r *Result) CPUPerMessage() float64 {
	if r.Messages == 0 {
		return 0
	}
	return r.CPU * 1e6 / float64(r.Messages)
}

// Median returns the result with the median rate, with the spread over all rounds. For an even number of rounds, it
// returns the lower of the two middle results. rounds must not be empty.
func Median(rounds []Result) Result {
	sorted := slices.SortedFunc(slices.Values(rounds), func(a, b Result) int { return cmp.Compare(a.Rate, b.Rate) })
	m := sorted[(len(sorted)-1)/2]
	m.Median, m.RateMin, m.RateMax = true, sorted[0].Rate, sorted[len(sorted)-1].Rate
	return m
}

// Remark describes the fields that only some workloads set; empty if none is set.
func (r *Result) Remark() string {
	var parts []string
	add := func(is bool, format string, args ...any) {
		if is {
			parts = append(parts, fmt.Sprintf(format, args...))
		}
	}
	add(r.StartMS > 0, "opened in %.0f ms", r.StartMS)
	add(r.QueueBytes != 0, "%.0f B of heap per queue", r.QueueBytes)
	add(r.DiskReadMB > 0, "plain read %.0f MB/s", r.DiskReadMB)
	add(r.Ratio > 0, "%.2f ×", r.Ratio)
	add(r.CPURatio > 0, "CPU per message %.2f ×", r.CPURatio)
	add(r.WrittenBytes > 0, "file writes %.0f B and reads %.0f B per message", r.WrittenBytes, r.ReadBytes)
	add(r.Fraction > 0, "fairness %.2f", r.Fraction)
	add(r.Setting != "", "%.1f checkpoints/min, log %.0f MB, peak %.0f MB", r.CheckpointsPerMin, r.LogMB, r.PeakRSS)
	add(r.MemoryLimitMB > 0, "in %.0f MB", r.MemoryLimitMB)
	add(r.Comment != "", "%s", r.Comment)
	return strings.Join(parts, "; ")
}

// Describe returns the name of the measurement with the parameters that distinguish it within its workload.
func (r *Result) Describe() string {
	s := r.Workload + " " + r.Phase
	switch {
	case r.Subscriptions > 0:
		s += fmt.Sprintf(", %d subscriptions", r.Subscriptions)
	case r.Setting != "":
		s = fmt.Sprintf("%s=%s, %d×%d %s", r.Setting, r.Value, max(r.Publishers, r.Producers), r.Window, r.Phase)
	case r.Workload == "growth":
		s += fmt.Sprintf(", %d stored", r.Stored)
	case r.Workload == "queues" && r.Queues > 1:
		s += fmt.Sprintf(", %d queues", r.Queues)
	}
	return s
}
