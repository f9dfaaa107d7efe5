// SPDX-License-Identifier: Apache-2.0

package protoconv

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/store"
	"github.com/lockstep-mq/lockstep/store/index"
	"github.com/lockstep-mq/lockstep/store/lsn"
	"github.com/lockstep-mq/lockstep/store/query"
	"github.com/lockstep-mq/lockstep/store/txn"
)

// QueueToProto converts a queue. For each subscription, it calls consumers with the ID and the converted
// subscription, to which consumers can add fields.
func QueueToProto(q *query.QueueInfo, consumers func(sub uint32, out *pb.Subscription)) *pb.Queue {
	out := &pb.Queue{
		Name: q.Name, Id: q.ID, Config: ConfigToProto(&q.Config, q.DeadLetter),
		NextSequence: q.NextSequence, Messages: q.Messages, Bytes: q.Bytes, Digest: q.Digest,
		Delayed: q.Delayed, Dropped: q.Dropped, Expired: q.Expired, Pause: PauseToProto(q.Pause),
		MessageIds: q.MessageIDs, Duplicates: q.Duplicates,
		Subscriptions: make([]*pb.Subscription, 0, len(q.Subscriptions)),
	}
	if own := q.Own; own != nil {
		out.Sources = &pb.QueueSources{
			Own: ConfigToProto(&own.Config, own.DeadLetter), OwnFields: fieldNames(own.Fields),
			Policy: own.Sources.Defaults, LimitPolicy: own.Sources.Limits, LimitedFields: fieldNames(own.Sources.Limited),
		}
	}
	for _, f := range q.Forwards {
		out.Forwards = append(out.Forwards, &pb.Forward{To: f.To, Move: f.Move, Filter: f.Filter})
	}
	for _, sub := range q.Subscriptions {
		described := &pb.Subscription{
			Name: sub.Name, Floor: sub.Floor, Backlog: sub.Backlog, Filter: sub.Options.Filter,
			Redelivery: PolicyToProto(&sub.Options, sub.DeadLetter), Pause: PauseToProto(sub.Pause),
		}
		consumers(sub.ID, described)
		out.Subscriptions = append(out.Subscriptions, described)
	}
	slices.SortFunc(out.GetSubscriptions(), func(a, b *pb.Subscription) int {
		return strings.Compare(a.GetName(), b.GetName())
	})
	return out
}

// PauseToProto converts a pause. It returns nil if neither publishing nor delivery is paused.
func PauseToProto(p txn.Pause) *pb.QueuePause {
	if !p.Paused() {
		return nil
	}
	return &pb.QueuePause{
		Publish: p.Publish, Deliver: p.Deliver, PausedAt: timestamppb.New(time.UnixMilli(int64(p.TimeMS))),
		PausedBy: p.By, Reason: p.Reason,
	}
}

// Duplicates converts a list of duplicates. It returns nil if d is nil.
func Duplicates(d *txn.Duplicates) []*pb.DuplicateMessage {
	if d == nil {
		return nil
	}
	out := make([]*pb.DuplicateMessage, len(*d))
	for i, one := range *d {
		out[i] = &pb.DuplicateMessage{Index: one.Index, Sequence: one.Sequence}
	}
	return out
}

// storedParts contains the parts of one converted message.
type storedParts struct {
	stored  pb.StoredMessage
	message pb.Message
	at      timestamppb.Timestamp
}

// fill converts a delivery. The parts refer to the record, which is immutable.
func (p *storedParts) fill(d *store.Delivery, headersOnly bool) error {
	m, err := txn.DecodeMessage(d.Record)
	if err != nil {
		return fmt.Errorf("%w: sequence %d: %w", index.ErrDataLoss, d.Sequence, err)
	}
	p.set(d.Sequence, d.DeliveryCount, &m)
	if !headersOnly {
		p.message.Body = m.Body
	}
	return nil
}

// set converts the sequence, the delivery count, and the message without its body.
func (p *storedParts) set(sequence uint64, deliveryCount uint32, m *txn.Message) {
	at := time.UnixMilli(m.TimestampMS)
	p.at.Seconds, p.at.Nanos = at.Unix(), int32(at.Nanosecond())
	p.stored.Sequence, p.stored.DeliveryCount, p.stored.PublishedAt, p.stored.Message = sequence, deliveryCount,
		&p.at, &p.message
	p.message.Properties = m.PropertyMap()
	setAttributes(&p.message, m)
	p.stored.DeadLetter = deadLetterToProto(m.DeadLetter())
}

// StoredMessages converts deliveries for the response of a Browse call. If headersOnly is set, the messages have no
// bodies.
func StoredMessages(deliveries []store.Delivery, headersOnly bool) ([]*pb.StoredMessage, error) {
	parts, out := make([]storedParts, len(deliveries)), make([]*pb.StoredMessage, len(deliveries))
	for i := range deliveries {
		if err := parts[i].fill(&deliveries[i], headersOnly); err != nil {
			return nil, err
		}
		out[i] = &parts[i].stored
	}
	return out, nil
}

// PositionToProto converts a log position.
func PositionToProto(p lsn.Position) *pb.Position {
	return &pb.Position{Term: p.Term, Lsn: p.LSN, Chain: p.Chain}
}

// Producer converts the producer of a request. It returns nil if p is nil.
func Producer(p *pb.Producer) (*txn.Producer, error) {
	if p == nil {
		return nil, nil //nolint:nilnil // no producer is no error
	}
	producer := txn.Producer{ID: []byte(p.GetId()), Epoch: p.GetEpoch(), Sequence: p.GetSequence()}
	if err := txn.CheckProducer(producer); err != nil {
		return nil, err
	}
	return &producer, nil
}
