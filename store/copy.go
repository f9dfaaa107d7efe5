// SPDX-License-Identifier: Apache-2.0

package store

import (
	"context"
	"errors"

	"github.com/lockstep-mq/lockstep/store/queue"
	"github.com/lockstep-mq/lockstep/store/repair"
)

// copyBytes is the size of the result at which CopyMessages returns, and the size limit of each of its reads.
const copyBytes = 8 << 20

// CopyMessages returns this node's copies of the messages with sequences first to last in a queue. The result covers
// the sequences up to FoundMessages.Last, and lists the messages that are corrupt on this node. CopyMessages
// schedules the repair of those.
func (s *Store) CopyMessages(ctx context.Context, queueID, first, last uint64) (repair.FoundMessages, error) {
	found := repair.FoundMessages{Last: last}
	size := 0
	for from := first; from <= last; {
		if size >= copyBytes {
			found.Last = from - 1
			break
		}
		n := int(min(last-from+1, queue.MaxExtentSpan))
		got, next, err := s.read(ctx, ReadRequest{Queue: queueID, From: from, MaxMessages: n, MaxBytes: copyBytes}, nil)
		for i := range got {
			if got[i].Sequence <= last {
				found.Messages = append(found.Messages, repair.Message{Sequence: got[i].Sequence, Record: got[i].Record})
				size += len(got[i].Record)
			}
		}
		switch bad, ok := errors.AsType[*repair.CorruptError](err); {
		case ok:
			s.repair.Note(bad) // also repair it on this node
			for _, seq := range bad.Sequences {
				if seq <= last {
					found.Damaged = append(found.Damaged, seq)
				}
			}
			from = bad.Sequences[len(bad.Sequences)-1] + 1
		case err != nil:
			return repair.FoundMessages{}, err
		case next <= from: // no further messages
			return found, nil
		default:
			from = next
		}
	}
	return found, nil
}
