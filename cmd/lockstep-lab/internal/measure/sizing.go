// SPDX-License-Identifier: Apache-2.0

package measure

// Size is what a pair carries at most whose nodes have a machine each with so many processors like those of a
// measurement. It is derived from processor time and was not measured on such machines: the bandwidth of memory, disk
// and network, waiting for locks and the work of the scheduler are not in it.
type Size struct {
	Processors int `json:"processors"`
	// ByProcessors is how many messages a second the busier node has processor time for.
	ByProcessors float64 `json:"processors_allow_per_s"`
	// BySerial is how many the longest section has time for of which there is one goroutine.
	BySerial float64 `json:"serial_allows_per_s"`
	// Limit is what allows less: "active" or "standby" when it is that node's processors, else the section's function.
	Limit string `json:"limit"`
}

// Rate is the lower one of both.
func (s Size) Rate() float64 { return min(s.ByProcessors, s.BySerial) }

// sizing derives sizes from the sections of both nodes.
func sizing(sections []Section) []Size {
	cpu := map[string]float64{}
	var serial Section
	for _, s := range sections {
		cpu[s.Node] += s.CPU
		if s.Goroutines == 1 && s.CPU > serial.CPU {
			serial = s
		}
	}
	busier := "active"
	if cpu["standby"] > cpu[busier] {
		busier = "standby"
	}
	if cpu[busier] == 0 || serial.CPU == 0 {
		return nil // a load so short that no sample was taken
	}
	var out []Size
	for _, n := range []int{2, 4, 8, 16, 32, 64} {
		s := Size{Processors: n, ByProcessors: float64(n) * 1e6 / cpu[busier], BySerial: serial.Ceiling, Limit: busier}
		if s.BySerial < s.ByProcessors {
			s.Limit = serial.Function
		}
		out = append(out, s)
	}
	return out
}
