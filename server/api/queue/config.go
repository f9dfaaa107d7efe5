// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/lockstep-mq/lockstep/failover"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/server/api/apierror"
	"github.com/lockstep-mq/lockstep/server/api/protoconv"
	"github.com/lockstep-mq/lockstep/server/delivery/session"
	"github.com/lockstep-mq/lockstep/store/query"
	"github.com/lockstep-mq/lockstep/store/txn"
)

// noSuchQueue is never the ID of a queue. A change that references it is refused when it is applied.
const noSuchQueue = math.MaxUint64

// config converts a configuration. It rejects fields in mask that a node of the pair does not support, and returns
// the mask for the log record. If the dead-letter queue does not exist at this pair, it returns the error (isMissing)
// together with a valid configuration that references noSuchQueue.
func (s *Service) config(
	session *session.Session, in *pb.QueueConfig, mask txn.ConfigMask,
) (c txn.Config, known txn.ConfigMask, err error) {
	if c, err = protoconv.Config(in); err != nil {
		return c, 0, err
	}
	if name := in.GetDeadLetter(); name != "" && mask&txn.FieldDeadLetter != 0 {
		if c.DeadLetter, err = s.findDeadLetter("dead_letter", name); err != nil {
			return c, mask, err
		}
	}
	c = txn.Config{}.With(c, mask)
	exact := mask&byteLimits != 0 && c.MaxBytes|c.RetentionBytes != 0
	if mask&^txn.PlainFields == 0 && !exact {
		return c, mask, nil
	}
	feature := failover.FeatureQueues
	if mask&^deadLetterFields == 0 && !exact {
		feature = failover.FeatureDeadLetters
	}
	err = s.serving.Require(session, feature)
	switch {
	case err == nil && exact:
		c.ExactBytes = 1
		mask |= txn.FieldExactBytes
	case err != nil && mask&^txn.PlainFields == 0:
		return c, mask, nil // bytes are counted as in release 0.1.0
	case err != nil && c.Plain() && mask == txn.AllFields:
		return c, txn.PlainFields, nil // all fields that the pair supports
	}
	return c, mask, err
}

// bothLimits completes a change of only max_messages or only max_bytes with the current value of the other limit, for
// nodes of release 0.1.0.
func (s *Service) bothLimits(name string, c txn.Config, mask txn.ConfigMask) (txn.Config, txn.ConfigMask, error) {
	if mask == 0 || mask == txn.PlainFields || mask&^txn.PlainFields != 0 {
		return c, mask, nil
	}
	queues := [1]query.Target{{Queue: name}}
	if _, err := query.Lookup(s.store, nil, false, queues[:]); err != nil {
		return c, mask, err
	}
	return txn.Config{}.With(queues[0].Config.With(c, mask), txn.PlainFields), txn.PlainFields, nil
}

// findDeadLetter resolves the name of a dead-letter queue. If the queue does not exist at this pair, it returns
// noSuchQueue and the error (isMissing).
func (s *Service) findDeadLetter(field, name string) (id uint64, err error) {
	id, err = s.find(name)
	switch {
	case errors.Is(err, txn.ErrQueueNotFound):
		return noSuchQueue, fmt.Errorf("%s: %w: %q; create it first, with a subscription", field, err, name)
	case isMissing(err):
		return noSuchQueue, fmt.Errorf("%s: %w", field, err)
	}
	return id, err
}

// deadLetterFields contains the fields that a pair with failover.FeatureDeadLetters supports.
const deadLetterFields = txn.PlainFields | txn.FieldMaxDeliveries | txn.FieldDeadLetter

// byteLimits contains the fields that require an exact byte count of the queue.
const byteLimits = txn.FieldMaxBytes | txn.FieldRetentionBytes

// alteredFields contains the fields that a request changes.
type alteredFields struct {
	set      txn.ConfigMask
	explicit txn.ConfigMask // fields in set that are set on the queue itself, even if they are 0
	reset    txn.ConfigMask // fields that are no longer set on the queue itself
}

func alteredBy(req *pb.AlterQueueRequest) (f alteredFields, err error) {
	if f.reset, err = configFields("reset_fields", req.GetResetFields()); err != nil {
		return f, err
	}
	switch paths := req.GetUpdateMask().GetPaths(); {
	case slices.Contains(paths, "*"):
		f.set = txn.AllFields
	case len(paths) > 0:
		f.explicit, err = configFields("update_mask", paths)
		f.set = f.explicit
	case f.reset == 0:
		f.set = txn.PlainFields
	}
	if f.explicit&f.reset != 0 {
		return f, fmt.Errorf("%w: reset_fields: a field in update_mask cannot be reset", apierror.ErrInvalid)
	}
	f.set &^= f.reset
	return f, err
}

func configFields(label string, names []string) (mask txn.ConfigMask, err error) {
	for _, name := range names {
		field := protoconv.ConfigField(name)
		if field == 0 {
			return 0, fmt.Errorf("%w: %s: unknown QueueConfig field %.100q", apierror.ErrInvalid, label, name)
		}
		mask |= field
	}
	return mask, nil
}

// explicit returns the fields that are set on the queue itself. These are the fields of c that are not 0 and, if the
// pair supports it, the given fields.
func (s *Service) explicit(session *session.Session, c *txn.Config, fields txn.ConfigMask) txn.ConfigMask {
	if s.serving.Require(session, failover.FeatureQueues) != nil {
		fields = 0
	}
	return c.Fields() | fields
}
