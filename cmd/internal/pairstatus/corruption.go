// SPDX-License-Identifier: Apache-2.0

package pairstatus

import pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"

// Damage counts data that a node read, found corrupt and repaired.
type Damage struct {
	ScrubbedPages    uint64 `json:"scrubbed_pages"`
	ScrubbedLogBytes uint64 `json:"scrubbed_log_bytes"`
	Scrubs           uint64 `json:"scrubs"`
	FoundPages       uint64 `json:"found_pages"`
	FoundLog         uint64 `json:"found_log"`
	RepairedPages    uint64 `json:"repaired_pages"`
	RepairedLog      uint64 `json:"repaired_log"`
	RepairedMessages uint64 `json:"repaired_messages"`
	DamagedMessages  uint64 `json:"damaged_messages"`
	LostMessages     uint64 `json:"lost_messages"`
	Index            string `json:"index,omitempty"`
}

// NewDamage converts the counters reported by a node.
func NewDamage(d *pb.DamageStatus) Damage {
	return Damage{
		ScrubbedPages: d.GetScrubbedPages(), ScrubbedLogBytes: d.GetScrubbedLogBytes(), Scrubs: d.GetScrubs(),
		FoundPages: d.GetFoundPages(),
		FoundLog:   d.GetFoundLog(), RepairedPages: d.GetRepairedPages(), RepairedLog: d.GetRepairedLog(),
		RepairedMessages: d.GetRepairedMessages(),
		DamagedMessages:  d.GetDamagedMessages(), LostMessages: d.GetLostMessages(), Index: d.GetIndex(),
	}
}
