// SPDX-License-Identifier: Apache-2.0

package store

import (
	"math"
	"time"

	"github.com/lockstep-mq/lockstep/store/txn"
)

// TTL returns the time in milliseconds after which a message in a queue expires; 0 if never, or if the queue does not
// exist.
func (s *Store) TTL(id uint64) int64 {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if q := s.state.Queue(id); q != nil {
		return int64(q.Config().TTL)
	}
	return 0
}

// RedeliveryDelays returns the redelivery delay of each sequence, according to the configuration and the number of
// releases; nil if the subscription has no redelivery delay.
func (s *Store) RedeliveryDelays(id uint64, sub uint32, sequences []uint64) []time.Duration {
	s.mu.RLock()
	defer s.mu.RUnlock()
	q := s.state.Queue(id)
	if q == nil || q.Sub(sub) == nil {
		return nil
	}
	of := q.Sub(sub)
	config := of.Config()
	if config.RedeliveryDelay == 0 {
		return nil
	}
	delays := make([]time.Duration, len(sequences))
	for i, sequence := range sequences {
		delays[i] = redeliveryDelay(&config, of.DeliveryCount(sequence))
	}
	return delays
}

// redeliveryDelay returns the delay of a message after the given number of releases.
func redeliveryDelay(c *txn.Config, times uint32) time.Duration {
	longest := float64(c.RedeliveryMaxDelay)
	if c.RedeliveryMaxDelay == 0 {
		longest = txn.MaxTime
	}
	ms := float64(c.RedeliveryDelay)
	if c.RedeliveryMultiplier != 0 && times > 1 {
		ms *= math.Pow(float64(c.RedeliveryMultiplier)/100, float64(times-1))
	}
	return time.Duration(min(ms, longest)) * time.Millisecond
}
