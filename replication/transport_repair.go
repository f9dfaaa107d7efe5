// SPDX-License-Identifier: Apache-2.0

package replication

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io"

	"github.com/google/uuid"
	"google.golang.org/grpc"

	lockstepv1 "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/store"
	"github.com/lockstep-mq/lockstep/store/lsn"
	"github.com/lockstep-mq/lockstep/store/repair"
	"github.com/lockstep-mq/lockstep/store/txn"
)

// A node with corrupt pages fetches the affected messages from the other node. Any node with the same history has the
// same message under the same sequence. The positions in request and response prove the common history.

const (
	repairPartBytes = 1 << 20
	// repairSlackBytes is the maximum overhead of a response over the largest message in it.
	repairSlackBytes = 2 << 20
)

// ErrHistory is returned if a common history of both nodes cannot be proven. A sequence may then identify different
// messages.
var ErrHistory = errors.New("other node has a different history, or its log is too short to compare")

// FetchMessages fetches intact copies of the messages with the sequences first to last of a queue, from the node at
// the other end of cc. applied is the position of the last record that this node has applied. FetchMessages returns
// ErrHistory if a common history of the nodes cannot be proven, and ErrChecksum if a message was corrupted in transit;
// it may return other errors. See repair.Source.
func FetchMessages(
	ctx context.Context, cc grpc.ClientConnInterface, s *store.Store, queue, first, last uint64, applied lsn.Position,
) (repair.FoundMessages, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	id := s.Identity()
	stream, err := lockstepv1.NewReplicationServiceClient(cc).FetchMessages(ctx, &lockstepv1.FetchMessagesRequest{
		PairId: id.PairID.String(), NodeId: id.NodeID.String(), Queue: queue, FirstSequence: first, LastSequence: last,
		Applied: toPosition(applied),
	}, grpc.MaxCallRecvMsgSize(txn.MaxTransactionBytes+repairSlackBytes))
	if err != nil {
		return repair.FoundMessages{}, fromStatus(err)
	}
	var found repair.FoundMessages
	for {
		r, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return repair.FoundMessages{}, fmt.Errorf("fetch messages: %w", io.ErrUnexpectedEOF)
		}
		if err != nil {
			return repair.FoundMessages{}, fromStatus(err)
		}
		for _, m := range r.GetMessages() {
			if crc32.Checksum(m.GetRecord(), castagnoli) != m.GetChecksum() {
				return repair.FoundMessages{}, fmt.Errorf("%w: message %d of queue %d", ErrChecksum, m.GetSequence(),
					queue)
			}
			found.Messages = append(found.Messages, repair.Message{Sequence: m.GetSequence(), Record: m.GetRecord()})
		}
		found.Damaged = append(found.Damaged, r.GetDamaged()...)
		if !r.GetFinished() {
			continue
		}
		found.Last = r.GetLastSequence()
		if theirs := fromPosition(r.GetApplied()); !theirs.IsZero() && !sameHistory(s, theirs) {
			return repair.FoundMessages{}, fmt.Errorf("%w: other node is at %v", ErrHistory, theirs)
		}
		return found, nil
	}
}

func sameHistory(s *store.Store, at lsn.Position) bool {
	have, ok := s.PositionOf(at.LSN)
	return ok && have == at
}

func (s *server) FetchMessages(
	req *lockstepv1.FetchMessagesRequest, stream grpc.ServerStreamingServer[lockstepv1.FetchMessagesResponse],
) error {
	return toStatus(s.fetchMessages(req, stream))
}

func (s *server) fetchMessages(
	req *lockstepv1.FetchMessagesRequest, stream grpc.ServerStreamingServer[lockstepv1.FetchMessagesResponse],
) error {
	id := s.store.Identity()
	var pair, node uuid.UUID
	switch err := errors.Join(parseID(req.GetPairId(), &pair), parseID(req.GetNodeId(), &node)); {
	case err != nil:
		return err
	case pair != id.PairID || pair == uuid.Nil:
		return fmt.Errorf("%w: node %s has pair %s, this node has pair %s", ErrOtherPair, node, pair, id.PairID)
	case node == id.NodeID:
		return fmt.Errorf("%w: node requested messages from itself", ErrProtocol)
	case req.GetFirstSequence() == 0 || req.GetLastSequence() < req.GetFirstSequence():
		return fmt.Errorf("%w: invalid range of messages: %d to %d", ErrProtocol, req.GetFirstSequence(),
			req.GetLastSequence())
	}
	last := &lockstepv1.FetchMessagesResponse{Finished: true}
	own, theirs := s.store.Applied(), fromPosition(req.GetApplied())
	switch {
	case theirs.LSN <= own.LSN && !sameHistory(s.store, theirs):
		return fmt.Errorf("%w: %v is not in this node's log", ErrHistory, theirs)
	case theirs.LSN > own.LSN:
		last.Applied = toPosition(own) // the requester checks it against its log
	}
	found, err := s.store.CopyMessages(stream.Context(), req.GetQueue(), req.GetFirstSequence(), req.GetLastSequence())
	if err != nil && !errors.Is(err, store.ErrNoQueue) {
		return fmt.Errorf("copy messages: %w", err)
	}
	last.Damaged, last.LastSequence = found.Damaged, max(found.Last, req.GetFirstSequence())
	if err != nil {
		last.LastSequence = req.GetLastSequence()
	}
	part, size := &lockstepv1.FetchMessagesResponse{}, 0
	for _, m := range found.Messages {
		part.Messages = append(part.Messages, &lockstepv1.RawMessage{
			Sequence: m.Sequence, Record: m.Record, Checksum: crc32.Checksum(m.Record, castagnoli),
		})
		if size += len(m.Record); size < repairPartBytes {
			continue
		}
		if err := stream.Send(part); err != nil {
			return fmt.Errorf("send messages: %w", err)
		}
		part, size = &lockstepv1.FetchMessagesResponse{}, 0
	}
	last.Messages = part.GetMessages()
	if err := stream.Send(last); err != nil {
		return fmt.Errorf("send messages: %w", err)
	}
	return nil
}
