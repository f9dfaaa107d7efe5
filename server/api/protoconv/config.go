// SPDX-License-Identifier: Apache-2.0

package protoconv

import (
	"fmt"
	"math"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/server/api/apierror"
	"github.com/lockstep-mq/lockstep/store/txn"
)

// hundredths is the resolution of redelivery_multiplier.
const hundredths = 100

// ConfigFields returns the names of the fields of pb.QueueConfig, in the order of their bits in a txn.ConfigMask.
func ConfigFields() []string {
	return []string{
		"max_messages", "max_bytes", "max_deliveries", "dead_letter", "ttl", "delay", "redelivery_delay",
		"redelivery_multiplier", "redelivery_max_delay", "retention_age", "retention_bytes", "retention_messages", "overflow",
		"priorities", "exclusive", "dead_letter_expired", "temporary_grace",
	}
}

// Config converts a queue's configuration except its dead-letter queue: only the store has its number. The error wraps
// ErrInvalid and names the field.
func Config(in *pb.QueueConfig) (c txn.Config, err error) {
	c = txn.Config{
		MaxMessages: in.GetMaxMessages(), MaxBytes: in.GetMaxBytes(), MaxDeliveries: uint64(in.GetMaxDeliveries()),
		RetentionBytes: in.GetRetentionBytes(), RetentionMessages: in.GetRetentionMessages(),
		Priorities: number(in.GetPriorities()), Exclusive: number(in.GetExclusive()),
		DeadLetterExpired: number(in.GetDeadLetterExpired()),
	}
	if c.MaxDeliveries > txn.MaxDeliveries {
		return c, fmt.Errorf("%w: max_deliveries is %d, maximum is %d; 0 means no limit", apierror.ErrInvalid,
			c.MaxDeliveries, txn.MaxDeliveries)
	}
	for _, d := range []struct {
		name string
		from *durationpb.Duration
		to   *uint64
	}{
		{"ttl", in.GetTtl(), &c.TTL},
		{"delay", in.GetDelay(), &c.Delay},
		{"redelivery_delay", in.GetRedeliveryDelay(), &c.RedeliveryDelay},
		{"redelivery_max_delay", in.GetRedeliveryMaxDelay(), &c.RedeliveryMaxDelay},
		{"retention_age", in.GetRetentionAge(), &c.RetentionAge},
		{"temporary_grace", in.GetTemporaryGrace(), &c.TemporaryGrace},
	} {
		if *d.to, err = Millis(d.name, d.from); err != nil {
			return c, err
		}
	}
	if m := in.GetRedeliveryMultiplier(); m != 0 {
		if !(m >= 1 && m <= txn.MaxMultiplier/hundredths) { // also rejects NaN
			return c, fmt.Errorf("%w: redelivery_multiplier is %v, must be 1 to %d, or 0 for 1", apierror.ErrInvalid,
				m, txn.MaxMultiplier/hundredths)
		}
		c.RedeliveryMultiplier = uint64(math.Round(m * hundredths))
	}
	switch o := in.GetOverflow(); o {
	case pb.Overflow_OVERFLOW_UNSPECIFIED, pb.Overflow_OVERFLOW_REJECT:
	case pb.Overflow_OVERFLOW_DROP_HEAD, pb.Overflow_OVERFLOW_DEAD_LETTER_HEAD:
		c.Overflow = uint64(o) - uint64(pb.Overflow_OVERFLOW_REJECT)
	default:
		return c, fmt.Errorf("%w: unknown overflow %d", apierror.ErrInvalid, o)
	}
	return c, nil
}

// ConfigToProto converts a queue's configuration; deadLetter is the name of its dead-letter queue.
func ConfigToProto(c *txn.Config, deadLetter string) *pb.QueueConfig {
	out := &pb.QueueConfig{
		MaxMessages: c.MaxMessages, MaxBytes: c.MaxBytes, MaxDeliveries: uint32(c.MaxDeliveries), DeadLetter: deadLetter,
		RetentionBytes: c.RetentionBytes, RetentionMessages: c.RetentionMessages, Priorities: c.Priorities != 0,
		Exclusive: c.Exclusive != 0, DeadLetterExpired: c.DeadLetterExpired != 0, Ttl: duration(c.TTL),
		Delay: duration(c.Delay), RedeliveryDelay: duration(c.RedeliveryDelay),
		RedeliveryMultiplier: float64(c.RedeliveryMultiplier) / hundredths,
		RedeliveryMaxDelay:   duration(c.RedeliveryMaxDelay), RetentionAge: duration(c.RetentionAge),
		TemporaryGrace: duration(c.TemporaryGrace),
	}
	if c.Overflow != txn.OverflowReject {
		out.Overflow = pb.Overflow(c.Overflow) + pb.Overflow_OVERFLOW_REJECT
	}
	return out
}

func number(b bool) uint64 {
	if b {
		return 1
	}
	return 0
}

// duration converts milliseconds; 0 is omitted.
func duration(ms uint64) *durationpb.Duration {
	if ms == 0 {
		return nil
	}
	return durationpb.New(time.Duration(ms) * time.Millisecond)
}
