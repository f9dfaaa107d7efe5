// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"slices"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// ranges is a list of sequence ranges in order of arrival. Consecutive sequences that arrive in order are merged.
type ranges []*pb.SequenceRange

func (r *ranges) add(sequence uint64) {
	if n := len(*r); n > 0 && (*r)[n-1].GetLast()+1 == sequence {
		(*r)[n-1].Last = sequence
		return
	}
	*r = append(*r, &pb.SequenceRange{First: sequence, Last: sequence})
}

// rangesOf sorts sequences in place, and returns them as ranges.
func rangesOf(sequences []uint64) (r ranges) {
	slices.Sort(sequences)
	for _, s := range sequences {
		r.add(s)
	}
	return r
}

// take removes and returns up to maxRanges ranges.
func (r *ranges) take() []*pb.SequenceRange {
	n := min(len(*r), maxRanges)
	first := (*r)[:n:n]
	if *r = (*r)[n:]; len(*r) == 0 {
		*r = nil
	}
	return first
}

// answers are message outcomes to be sent to the node.
type answers struct {
	ack, nack, reject, release ranges

	confirm uint64 // last confirmation number requested
}

func (a *answers) empty() bool {
	return len(a.ack) == 0 && len(a.nack) == 0 && len(a.reject) == 0 && len(a.release) == 0
}

// requeue adds messages that the client has not processed to a.release.
func (a *answers) requeue(sequences []uint64) {
	for _, s := range sequences {
		a.release.add(s)
	}
}

func (a *answers) take() *pb.ConsumeRequest {
	return &pb.ConsumeRequest{
		Ack: a.ack.take(), Nack: a.nack.take(), Reject: a.reject.take(), Release: a.release.take(),
	}
}
