// SPDX-License-Identifier: Apache-2.0

package store

import (
	"context"
	"errors"

	"github.com/lockstep-mq/lockstep/store/queue"
	"github.com/lockstep-mq/lockstep/store/repair"
)

// copyBytes bounds the result of CopyMessages, except for a single larger message.
const copyBytes = 8 << 20

// CopyMessages returns this node's copies of a queue's messages from sequence first to last, for the other node to
// repair its own. If they are large it returns a part of them (FoundMessages.Last). Messages that are corrupt on this
// node are listed in the result.
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
		var bad *repair.CorruptError
		switch {
		case errors.As(err, &bad):
			s.repair.Note(bad) // repair it on this node too
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
