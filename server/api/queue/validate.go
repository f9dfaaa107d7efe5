// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"cmp"
	"fmt"
	"math"

	"github.com/lockstep-mq/lockstep/failover"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/server/api/apierror"
	"github.com/lockstep-mq/lockstep/server/api/protoconv"
	"github.com/lockstep-mq/lockstep/server/delivery/session"
	"github.com/lockstep-mq/lockstep/store/txn"
)

const (
	maxRequestRanges     = 10_000 // maximum number of ranges in one field of a consumer's request
	maxPageSize          = 1000
	maxPageSubscriptions = 10_000
	defaultSubscription  = "default"
)

func subscriptionName(name string) string { return cmp.Or(name, defaultSubscription) }

// pageSize returns the requested page size. If that is 0 or greater than limit, pageSize returns limit.
func pageSize(requested uint32, limit int) int {
	return min(int(cmp.Or(requested, math.MaxUint32)), limit)
}

// checkMessages checks limits.message-bytes, the number of messages and the features of the pair. It returns the
// approximate size of the batch in a transaction, in bytes.
func (s *Service) checkMessages(session *session.Session, messages []*pb.Message) (sizeBytes int, err error) {
	if err := txn.CheckBatch(len(messages)); err != nil {
		return 0, err
	}
	attributes, delivery := false, false
	for i, m := range messages {
		n := len(m.GetBody())
		if n > int(s.limits.Load().MessageBytes) {
			return 0, fmt.Errorf("%w: message %d has %d bytes, limits.message-bytes is %s", txn.ErrTooLarge, i, n,
				s.limits.Load().MessageBytes)
		}
		sizeBytes += messageOverheadBytes + n
		for k, v := range m.GetProperties() {
			sizeBytes += len(k) + len(v)
		}
		if protoconv.HasAttributes(m) {
			sizeBytes += protoconv.AttributesBytes(m)
			attributes, delivery = true, delivery || protoconv.ControlsDelivery(m)
		}
	}
	if attributes {
		if err := s.serving.Require(session, failover.FeatureAttributes); err != nil {
			return 0, fmt.Errorf("messages with standard fields or typed properties: %w", err)
		}
	}
	if delivery {
		if err := s.serving.Require(session, failover.FeatureQueues); err != nil {
			return 0, fmt.Errorf("messages with delivery options: %w", err)
		}
	}
	return sizeBytes, nil
}

const messageOverheadBytes = 13 // minimum size of a stored message without body and properties

// checkTransactionBytes returns an error if a transaction is too large.
func (s *Service) checkTransactionBytes(sizeBytes int) error {
	if sizeBytes > int(s.limits.Load().TransactionBytes) {
		return fmt.Errorf("%w: transaction has about %d bytes, limits.transaction-bytes is %s", txn.ErrTooLarge,
			sizeBytes, s.limits.Load().TransactionBytes)
	}
	return nil
}

func ranges(in []*pb.SequenceRange, limit int) ([]txn.Range, error) {
	if len(in) > limit {
		return nil, fmt.Errorf("%w: %d ranges, maximum is %d; use several requests", apierror.ErrInvalid, len(in), limit)
	}
	out := make([]txn.Range, 0, len(in))
	for _, r := range in {
		if r.GetFirst() == 0 || r.GetLast() < r.GetFirst() {
			return nil, fmt.Errorf("%w: range %d to %d: first must be at least 1 and last must not be below first",
				apierror.ErrInvalid, r.GetFirst(), r.GetLast())
		}
		out = append(out, txn.Range{First: r.GetFirst(), Last: r.GetLast()})
	}
	return out, nil
}

func startPosition(p pb.StartPosition) (txn.Start, error) {
	switch p {
	case pb.StartPosition_START_POSITION_UNSPECIFIED, pb.StartPosition_START_POSITION_LATEST:
		return txn.StartLatest, nil
	case pb.StartPosition_START_POSITION_EARLIEST:
		return txn.StartEarliest, nil
	default:
		return 0, fmt.Errorf("%w: unknown start position %d", apierror.ErrInvalid, p)
	}
}

func subscriptionNames(req *pb.CreateQueueRequest) ([]string, error) {
	names := req.GetSubscriptions()
	switch {
	case req.GetTopic() && len(names) > 0:
		return nil, fmt.Errorf("%w: `topic` creates no subscriptions, but %d are specified", apierror.ErrInvalid, len(names))
	case req.GetTopic():
		return nil, nil
	case len(names) == 0:
		return []string{defaultSubscription}, nil
	case len(names) > txn.MaxSubscriptions:
		return nil, fmt.Errorf("%w: %d subscriptions, maximum is %d", txn.ErrTooManySubscriptions, len(names),
			txn.MaxSubscriptions)
	}
	seen := make(map[string]bool, len(names))
	for _, n := range names {
		if seen[n] {
			return nil, fmt.Errorf("%w: duplicate subscription %q", apierror.ErrInvalid, n)
		}
		seen[n] = true
	}
	return names, nil
}
