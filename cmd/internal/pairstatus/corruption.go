// SPDX-License-Identifier: Apache-2.0

package pairstatus

import pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"

// Corruption counts data that a node read, found corrupt and repaired.
type Corruption struct {
	ScrubbedPages    uint64 `json:"scrubbed_pages"`
	ScrubbedLogBytes uint64 `json:"scrubbed_log_bytes"`
	Scrubs           uint64 `json:"scrubs"`
	FoundPages       uint64 `json:"found_pages"`
	FoundLog         uint64 `json:"found_log"`
	RepairedPages    uint64 `json:"repaired_pages"`
	RepairedLog      uint64 `json:"repaired_log"`
	RepairedMessages uint64 `json:"repaired_messages"`
	CorruptMessages  uint64 `json:"damaged_messages"`
	LostMessages     uint64 `json:"lost_messages"`
	Index            string `json:"index,omitempty"`
}

// NewCorruption converts the counters reported by a node.
func NewCorruption(d *pb.DamageStatus) Corruption {
	return Corruption{
		ScrubbedPages: d.GetScrubbedPages(), ScrubbedLogBytes: d.GetScrubbedLogBytes(), Scrubs: d.GetScrubs(),
		FoundPages: d.GetFoundPages(),
		FoundLog:   d.GetFoundLog(), RepairedPages: d.GetRepairedPages(), RepairedLog: d.GetRepairedLog(),
		RepairedMessages: d.GetRepairedMessages(),
		CorruptMessages:  d.GetDamagedMessages(), LostMessages: d.GetLostMessages(), Index: d.GetIndex(),
	}
}
