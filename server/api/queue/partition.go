// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"errors"
	"fmt"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/server/api/apierror"
	"github.com/lockstep-mq/lockstep/server/delivery/dispatch"
	"github.com/lockstep-mq/lockstep/store/query"
	"github.com/lockstep-mq/lockstep/store/txn"
)

// partitioned returns an *apierror.PartitionedError if one of the queues that do not exist at this pair is partitioned,
// otherwise nil. The partitions may belong to other pairs.
func (s *Service) partitioned(targets []query.Target) error {
	for i := range targets {
		if targets[i].Found {
			continue
		}
		name := targets[i].Queue
		count := query.Partitions(s.store, name)
		if count == 0 && s.fleet != nil {
			count = s.fleet.Partitions(name)
		}
		if count > 0 {
			return &apierror.PartitionedError{Queue: name, Count: count}
		}
	}
	return nil
}

// replaces reports whether the error of a lookup replaces that of a refused transaction.
func replaces(missing error) bool {
	return apierror.ConcernsOwner(missing) || errors.Is(missing, apierror.ErrCrossPair) ||
		errors.Is(missing, apierror.ErrPartitioned)
}

const maxConsumerIDBytes = 64

// divide checks and declares the ID of a consumer of a partition. It has no effect for other queues.
func divide(c *dispatch.Consumer, attach *pb.Attach) error {
	p, is := txn.ParsePartition(attach.GetQueue())
	if !is {
		return nil
	}
	if n := len(attach.GetConsumerId()); n > maxConsumerIDBytes {
		return fmt.Errorf("%w: consumer_id has %d bytes, maximum is %d", apierror.ErrInvalid, n, maxConsumerIDBytes)
	}
	c.Divide(p.Index, attach.GetConsumerId())
	return nil
}
