// SPDX-License-Identifier: Apache-2.0

package measure

// Size is the estimated maximum rate of a pair with the given number of processors per node, derived from the CPU time
// of a measurement. It ignores the bandwidth of memory, disk and network, lock waits and scheduling.
type Size struct {
	Processors int `json:"processors"`
	// ByProcessors is the number of messages per second that the processors of the busier node allow.
	ByProcessors float64 `json:"processors_allow_per_s"`
	// BySerial is the ceiling of the section with the most CPU time among those with a single goroutine.
	BySerial float64 `json:"serial_allows_per_s"`
	// Limit is the name of the lower limit: "active" or "standby" for the processors of that node, or the function of the
	// section.
	Limit string `json:"limit"`
}

// Rate returns the lower of the two limits.
func (s Size) Rate() float64 { return min(s.ByProcessors, s.BySerial) }

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
		return nil // the load was too short for a sample
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
