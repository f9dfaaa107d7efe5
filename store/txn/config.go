// SPDX-License-Identifier: Apache-2.0

package txn

import (
	"encoding/binary"
	"fmt"
	"math/bits"
)

// Config is the configuration of a queue. It is encoded as a field count (u8) and the fields (uvarint each). An
// unknown field is ErrNewerVersion unless it is zero. Durations are in milliseconds.
type Config struct {
	// MaxMessages and MaxBytes are the limits above which Overflow applies; 0 means no limit.
	MaxMessages, MaxBytes uint64
	// MaxDeliveries is the maximum number of deliveries of a message per subscription; 0 means no limit.
	MaxDeliveries uint64
	DeadLetter    uint64 // number of the dead-letter queue, or NoQueue
	// TTL is the time after which a message in the queue expires; 0 means no limit. A message can also have its own
	// expiry time.
	TTL             uint64
	Delay           uint64 // delivery delay of a message without its own delivery time
	RedeliveryDelay uint64 // delay after the first nack
	// RedeliveryMultiplier is the factor by which the delay grows with each further nack, in hundredths; 0 means 100.
	RedeliveryMultiplier uint64
	// RedeliveryMaxDelay is the maximum redelivery delay; 0 means MaxTime.
	RedeliveryMaxDelay uint64
	// RetentionAge is the maximum time since publication of messages that are retained although all subscriptions have
	// acknowledged them; 0 means no limit.
	RetentionAge uint64
	// RetentionBytes and RetentionMessages are the maximum size and number of the retained messages; 0 means no limit.
	// Without RetentionAge and these limits, acknowledged messages are not retained.
	RetentionBytes, RetentionMessages uint64
	Overflow                          Overflow
	Priorities                        uint64 // 1: deliver higher priorities first; cannot be altered
	// Exclusive is 1 if only one consumer of each subscription receives messages at a time.
	Exclusive         uint64
	DeadLetterExpired uint64 // 1: move expired messages to DeadLetter
	// TemporaryGrace is the time without consumers after which the active deletes the queue; 0 means that the queue is
	// not temporary.
	TemporaryGrace uint64
	// ExactBytes is 1 if the queue stores the size of each message while MaxBytes or RetentionBytes is set. Clients
	// cannot set it.
	ExactBytes uint64
	// AckTimeout is the time within which a consumer must acknowledge a delivered message; 0 means no deadline.
	AckTimeout uint64
	// DedupWindow is the time for which message IDs are retained to discard duplicates. 0 means no deduplication.
	DedupWindow uint64
	DedupMax    uint64 // maximum number of retained message IDs; 0 means no limit
}

// Overflow is the policy for publishing to a full queue.
type Overflow = uint64

// Kinds of Overflow, as stored.
const (
	OverflowReject         Overflow = 0
	OverflowDropHead       Overflow = 1
	OverflowDeadLetterHead Overflow = 2
)

// ConfigMask is a set of fields of a Config.
type ConfigMask uint64

// Fields of a Config.
const (
	FieldMaxMessages ConfigMask = 1 << iota
	FieldMaxBytes
	FieldMaxDeliveries
	FieldDeadLetter
	FieldTTL
	FieldDelay
	FieldRedeliveryDelay
	FieldRedeliveryMultiplier
	FieldRedeliveryMaxDelay
	FieldRetentionAge
	FieldRetentionBytes
	FieldRetentionMessages
	FieldOverflow
	FieldPriorities
	FieldExclusive
	FieldDeadLetterExpired
	FieldTemporaryGrace
	FieldExactBytes
	FieldAckTimeout
	FieldDedupWindow
	FieldDedupMax

	// PlainFields are the fields that releases before 0.2.0 support.
	PlainFields = FieldMaxMessages | FieldMaxBytes
	// PolicyFields are the fields that a subscription can override.
	PolicyFields = FieldMaxDeliveries | FieldDeadLetter | FieldRedeliveryDelay | FieldRedeliveryMultiplier |
		FieldRedeliveryMaxDelay | FieldAckTimeout
	AllFields = FieldDedupMax<<1 - 1

	// DefaultFields are the fields that a QueuePolicy can set: those that can be altered and are visible to clients.
	DefaultFields = AllFields &^ (FieldPriorities | FieldExactBytes)
	// LimitFields are the fields that a QueuePolicy can limit.
	LimitFields = FieldMaxMessages | FieldMaxBytes | FieldMaxDeliveries | FieldTTL
)

// configField describes one field of a Config. configFields lists the fields in the order of their bits and of their
// encoding.
type configField struct {
	of   func(*Config) *uint64
	most uint64
}

var configFields = [...]configField{ //nolint:gochecknoglobals // a table
	{func(c *Config) *uint64 { return &c.MaxMessages }, noLimit},
	{func(c *Config) *uint64 { return &c.MaxBytes }, noLimit},
	{func(c *Config) *uint64 { return &c.MaxDeliveries }, MaxDeliveries},
	{func(c *Config) *uint64 { return &c.DeadLetter }, noLimit},
	{func(c *Config) *uint64 { return &c.TTL }, MaxTime},
	{func(c *Config) *uint64 { return &c.Delay }, MaxTime},
	{func(c *Config) *uint64 { return &c.RedeliveryDelay }, MaxTime},
	{func(c *Config) *uint64 { return &c.RedeliveryMultiplier }, MaxMultiplier},
	{func(c *Config) *uint64 { return &c.RedeliveryMaxDelay }, MaxTime},
	{func(c *Config) *uint64 { return &c.RetentionAge }, MaxTime},
	{func(c *Config) *uint64 { return &c.RetentionBytes }, noLimit},
	{func(c *Config) *uint64 { return &c.RetentionMessages }, noLimit},
	{func(c *Config) *uint64 { return &c.Overflow }, OverflowDeadLetterHead},
	{func(c *Config) *uint64 { return &c.Priorities }, 1},
	{func(c *Config) *uint64 { return &c.Exclusive }, 1},
	{func(c *Config) *uint64 { return &c.DeadLetterExpired }, 1},
	{func(c *Config) *uint64 { return &c.TemporaryGrace }, MaxTime},
	{func(c *Config) *uint64 { return &c.ExactBytes }, 1},
	{func(c *Config) *uint64 { return &c.AckTimeout }, MaxTime},
	{func(c *Config) *uint64 { return &c.DedupWindow }, MaxTime},
	{func(c *Config) *uint64 { return &c.DedupMax }, noLimit},
}

const noLimit = 1<<64 - 1

// Field returns a pointer to a field, and the field's maximum. number is the index of the field's bit in a ConfigMask.
func (c *Config) Field(number int) (value *uint64, most uint64) {
	f := &configFields[number]
	return f.of(c), f.most
}

// With returns a copy of c with the fields in mask replaced by their values in o.
func (c Config) With(o Config, mask ConfigMask) Config {
	for i, f := range configFields {
		if mask>>i&1 != 0 {
			*f.of(&c) = *f.of(&o)
		}
	}
	return c
}

// Fields returns the set of non-zero fields.
func (c *Config) Fields() (mask ConfigMask) {
	for i, f := range configFields {
		if *f.of(c) != 0 {
			mask |= 1 << i
		}
	}
	return mask
}

// Values iterates over all fields and their values, in the order of their bits.
func (c *Config) Values(yield func(field ConfigMask, v uint64) bool) {
	for i, f := range configFields {
		if !yield(1<<i, *f.of(c)) {
			return
		}
	}
}

// Limited reports whether the queue has a limit on its messages or bytes.
func (c *Config) Limited() bool { return c.MaxMessages|c.MaxBytes != 0 }

// Retention is the set of fields that configure the retention of acknowledged messages.
const Retention = FieldRetentionAge | FieldRetentionBytes | FieldRetentionMessages

// Retains reports whether the queue retains messages after all subscriptions have acknowledged them.
func (c *Config) Retains() bool { return c.RetentionAge|c.RetentionBytes|c.RetentionMessages != 0 }

// Plain reports whether releases before 0.2.0 support the configuration.
func (c *Config) Plain() bool { return c.Fields()&^PlainFields == 0 }

// AppendConfig appends the encoding of c to dst. A plain configuration has the same encoding as in releases before
// 0.2.0.
func AppendConfig(dst []byte, c Config) []byte { return appendConfig(dst, c, PlainFields) }

// appendConfig appends the encoding of c to dst. A mask other than PlainFields is encoded as an additional field
// after the plain fields.
func appendConfig(dst []byte, c Config, mask ConfigMask) []byte {
	if mask == PlainFields {
		mask = 0
	}
	n := max(plainFields, bits.Len64(uint64(c.Fields()))) // trailing zeros are omitted
	values := make([]uint64, 0, len(configFields)+1)
	for i, f := range configFields[:n] {
		if i == plainFields {
			values = append(values, uint64(mask))
		}
		values = append(values, *f.of(&c))
	}
	if n == plainFields && mask != 0 {
		values = append(values, uint64(mask))
	}
	dst = append(dst, byte(len(values)))
	for _, v := range values {
		dst = binary.AppendUvarint(dst, v)
	}
	return dst
}

// AppendOwnConfig appends the encoding of the configuration set on a queue itself to dst: c and own. own is the set of
// explicit fields; the other fields of c must be 0. own is omitted if it equals c.Fields().
func AppendOwnConfig(dst []byte, c Config, own ConfigMask) []byte {
	if own == c.Fields() {
		own = PlainFields // encoded as no mask
	} else if own == PlainFields {
		own |= explicitPlain
	}
	return appendConfig(dst, c, own)
}

// explicitPlain distinguishes PlainFields as a set of explicit fields from an omitted set.
const explicitPlain ConfigMask = 1 << 63

// DecodeOwnConfig decodes the result of AppendOwnConfig at the front of b. The errors wrap ErrMalformed or
// ErrNewerVersion.
func DecodeOwnConfig(b []byte) (c Config, own ConfigMask, rest []byte, err error) {
	d := decoder{b: b}
	decoded, own := d.ownConfig()
	return *decoded, own, d.b, d.err
}

func (d *decoder) ownConfig() (c *Config, own ConfigMask) {
	c, own = d.rawConfig()
	set := c.Fields()
	if own == PlainFields {
		return c, set
	}
	if own&explicitPlain != 0 {
		if own &^= explicitPlain; own != PlainFields {
			d.fail("invalid explicit fields")
		}
	}
	d.checkMask(own)
	if set&^own != 0 || set == own {
		d.fail("invalid explicit fields")
	}
	return c, own
}

// plainFields is the number of fields that are always encoded.
const plainFields = 2

// DecodeConfig decodes the result of AppendConfig at the front of b. The errors wrap ErrMalformed or ErrNewerVersion.
func DecodeConfig(b []byte) (c Config, rest []byte, err error) {
	d := decoder{b: b}
	decoded, mask := d.config()
	if mask != PlainFields {
		d.fail("configuration with a mask")
	}
	return *decoded, d.b, d.err
}

func (d *decoder) config() (c *Config, mask ConfigMask) {
	c, mask = d.rawConfig()
	d.checkMask(mask)
	return c, mask
}

func (d *decoder) checkMask(mask ConfigMask) {
	if mask&^AllFields != 0 && d.err == nil {
		d.err = fmt.Errorf("%w: queue configuration fields %#x", ErrNewerVersion, mask&^AllFields)
	}
}

// rawConfig decodes a configuration and the mask of its fields. It does not check the mask.
func (d *decoder) rawConfig() (c *Config, mask ConfigMask) {
	c, mask = &Config{}, PlainFields
	n := int(d.u8())
	for i := range n {
		v, field := d.uvarint(), i
		if i == plainFields {
			if v != 0 {
				mask = ConfigMask(v)
			}
			continue
		}
		if i > plainFields {
			field--
		}
		switch {
		case field < len(configFields):
			if v > configFields[field].most {
				d.fail("invalid queue configuration")
			}
			*configFields[field].of(c) = v
		case v != 0 && d.err == nil:
			d.err = fmt.Errorf("%w: queue configuration field %d", ErrNewerVersion, field)
		}
	}
	return c, mask
}
