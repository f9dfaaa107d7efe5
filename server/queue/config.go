// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"errors"
	"fmt"
	"math"

	"google.golang.org/protobuf/types/known/fieldmaskpb"

	"github.com/lockstep-mq/lockstep/failover"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/server/serving"
	"github.com/lockstep-mq/lockstep/server/wire"
	"github.com/lockstep-mq/lockstep/store/txn"
)

// noSuchQueue is the number of no queue that there ever will be: a change that names it is refused by the log.
const noSuchQueue = math.MaxUint64

// config converts the fields of a queue's configuration that mask names, and refuses what a node of the pair does not
// know. It returns the mask that says so to both. With txn.ErrQueueNotFound for the dead-letter queue, the
// configuration names no queue that there is.
func (s *Service) config(
	session *serving.Session, in *pb.QueueConfig, mask txn.ConfigMask,
) (c txn.Config, known txn.ConfigMask, err error) {
	c = txn.Config{
		MaxMessages: in.GetMaxMessages(), MaxBytes: in.GetMaxBytes(), MaxDeliveries: uint64(in.GetMaxDeliveries()),
	}
	if c.MaxDeliveries > txn.MaxDeliveries {
		return c, 0, fmt.Errorf("%w: max_deliveries is %d, at most %d are possible; 0 means no limit", wire.ErrInvalid,
			c.MaxDeliveries, txn.MaxDeliveries)
	}
	if name := in.GetDeadLetter(); name != "" && mask&txn.FieldDeadLetter != 0 {
		c.DeadLetter, err = s.find(name)
		if errors.Is(err, txn.ErrQueueNotFound) {
			c.DeadLetter = noSuchQueue
			err = fmt.Errorf("dead_letter: %w; create it first, with a subscription", err)
		}
		if err != nil {
			return c, mask, err
		}
	}
	c = txn.Config{}.With(c, mask)
	if mask&^txn.PlainFields == 0 {
		return c, mask, nil
	}
	err = s.serving.Require(session, failover.FeatureDeadLetters)
	if err != nil && c.Plain() && mask == txn.AllFields {
		return c, txn.PlainFields, nil // of a pair that does not know the others, that is all of them
	}
	return c, mask, err
}

// configMask converts the names of the fields that are to be changed.
func configMask(in *fieldmaskpb.FieldMask) (mask txn.ConfigMask, err error) {
	if len(in.GetPaths()) == 0 {
		return txn.PlainFields, nil
	}
	for _, name := range in.GetPaths() {
		switch name {
		case "*":
			mask |= txn.AllFields
		case "max_messages":
			mask |= txn.FieldMaxMessages
		case "max_bytes":
			mask |= txn.FieldMaxBytes
		case "max_deliveries":
			mask |= txn.FieldMaxDeliveries
		case "dead_letter":
			mask |= txn.FieldDeadLetter
		default:
			return 0, fmt.Errorf("%w: update_mask: %.100q is no field of QueueConfig", wire.ErrInvalid, name)
		}
	}
	return mask, nil
}
