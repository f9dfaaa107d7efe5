// SPDX-License-Identifier: Apache-2.0

package broker

import (
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// ranges are sequences in the order in which they came, those in a row together.
type ranges []*pb.SequenceRange

func (r *ranges) add(sequence uint64) {
	if n := len(*r); n > 0 && (*r)[n-1].GetLast()+1 == sequence {
		(*r)[n-1].Last = sequence
		return
	}
	*r = append(*r, &pb.SequenceRange{First: sequence, Last: sequence})
}

// take takes the first of them.
func (r *ranges) take() []*pb.SequenceRange {
	n := min(len(*r), maxRanges)
	first := (*r)[:n:n]
	if *r = (*r)[n:]; len(*r) == 0 {
		*r = nil
	}
	return first
}

// answers are outcomes of messages that the node is to be told.
type answers struct {
	ack, nack, reject, release ranges

	confirm uint64 // the last number that was asked for
}

func (a *answers) empty() bool {
	return len(a.ack) == 0 && len(a.nack) == 0 && len(a.reject) == 0 && len(a.release) == 0
}

// giveBack gives back messages that the client was not sent, or has not looked at.
func (a *answers) giveBack(sequences []uint64) {
	for _, s := range sequences {
		a.release.add(s)
	}
}

// take makes a request of them.
func (a *answers) take() *pb.ConsumeRequest {
	return &pb.ConsumeRequest{
		Ack: a.ack.take(), Nack: a.nack.take(), Reject: a.reject.take(), Release: a.release.take(),
	}
}
