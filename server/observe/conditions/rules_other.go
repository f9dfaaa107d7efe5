// SPDX-License-Identifier: Apache-2.0

package conditions

import (
	"fmt"
	"time"

	"github.com/lockstep-mq/lockstep/store/units"
)

const (
	// answerAge is how long a response of the other node is valid.
	answerAge = 5 * time.Second
	// clockSlack is the largest accepted difference between the clocks of the two nodes.
	clockSlack = 2 * time.Second
)

// other adds the other node's conditions: its own and, if it is the active, those of the pair.
func (f *findings) other(in *Input, o *Other) {
	if in.Now.Sub(o.At) > answerAge {
		return
	}
	f.pair(o.Offset.Abs() > clockSlack+o.Unsure, ClockSkew, "clock of the other node is %s %s",
		o.Offset.Abs().Round(100*time.Millisecond), map[bool]string{true: "ahead", false: "behind"}[o.Offset > 0])
	if o.Older {
		f.older(in, o)
		return
	}
	active := in.Pair.Record != nil && in.Pair.Record.Active.String() == o.Node.ID
	for _, r := range o.Reports {
		// Skip reports that originate from this node or concern it: this node has newer data. It reads conditions of the
		// cluster record itself, since a response can be older than the record.
		if r.By != o.Node.ID || r.Node.ID == f.self.ID || r.Node.ID == "" && !active ||
			InRecord(r.Kind) && in.Pair.CoordinatorReachable {
			continue
		}
		f.all = append(f.all, r)
	}
}

func (f *findings) older(in *Input, o *Other) {
	if mark := in.Config.Disk.LowWatermark; o.DiskFree > 0 && o.DiskFree < uint64(mark.Bytes()) {
		f.all = append(f.all, Report{Kind: DiskLow, Node: o.Node, By: o.Node.ID, Details: fmt.Sprintf(
			"%s free, this node's disk.low-watermark is %s", units.Bytes(o.DiskFree), mark)})
	}
	for _, r := range o.Reports {
		if Find(r.Kind) != nil {
			f.all = append(f.all, r)
		}
	}
}
