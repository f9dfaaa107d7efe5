// SPDX-License-Identifier: Apache-2.0

package txn

import (
	"encoding/binary"
	"fmt"
	"math/bits"
)

// Config is what can be altered on a queue. It is encoded as a count of fields and the fields, all uvarint, so that a
// later version can add one; a field that this version does not know is ErrNewerVersion unless it is zero. Times are in
// milliseconds.
type Config struct {
	// MaxMessages is the number of messages beyond which Overflow says what happens; 0 means no limit.
	MaxMessages uint64
	// MaxBytes is the number of bytes beyond which Overflow says what happens; 0 means no limit.
	MaxBytes uint64
	// MaxDeliveries is how many times a message is given to a consumer of a subscription at most, up to MaxDeliveries; 0
	// means no limit.
	MaxDeliveries uint64
	// DeadLetter is the number of the queue that messages are moved to which no consumer could deal with; NoQueue for
	// none.
	DeadLetter uint64
	// TTL is how long after it was published a message expires; 0 means never.
	TTL uint64
	// Delay is how long after it was published a message that names no time itself is delivered; 0 means at once.
	Delay uint64
	// RedeliveryDelay is how long a message waits that was given back for the first time; 0 means not at all.
	RedeliveryDelay uint64
	// RedeliveryMultiplier is what the delay grows by with each further time, in hundredths; 0 and 100 mean not at all.
	RedeliveryMultiplier uint64
	// RedeliveryMaxDelay is the longest delay; 0 means MaxTime.
	RedeliveryMaxDelay uint64
	// RetentionAge is how long a message is kept although all subscriptions have acknowledged it; 0 means that its age
	// does not matter.
	RetentionAge uint64
	// RetentionBytes is how many bytes of messages are kept at most because of a retention; 0 means no limit.
	RetentionBytes uint64
	// RetentionMessages is the same for their number.
	RetentionMessages uint64
	// Overflow says what happens when the queue is full.
	Overflow Overflow
	// Priorities is 1 for a queue that delivers messages of a higher priority first. It is set when the queue is made.
	Priorities uint64
	// Exclusive is 1 for a queue of which each subscription has one consumer at a time that gets messages.
	Exclusive uint64
	// DeadLetterExpired is 1 for a queue whose expired messages are moved to DeadLetter.
	DeadLetterExpired uint64
	// TemporaryGrace is how long after its last consumer has left a temporary queue is deleted; 0 means never.
	TemporaryGrace uint64
	// ExactBytes is 1 for a queue that keeps the size of each message while MaxBytes or RetentionBytes is set, so that its
	// count of bytes is exact. The active sets it together with one of them; clients do not see it.
	ExactBytes uint64
}

// Overflow says what happens to a publish to a queue that is full.
type Overflow = uint64

// Kinds of Overflow, as stored.
const (
	// OverflowReject refuses it.
	OverflowReject Overflow = 0
	// OverflowDropHead drops the oldest messages.
	OverflowDropHead Overflow = 1
	// OverflowDeadLetterHead moves the oldest messages to the dead-letter queue.
	OverflowDeadLetterHead Overflow = 2
)

// ConfigMask names fields of a Config.
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

	// PlainFields are those that releases before 0.2.0 know: they change all of them at once.
	PlainFields = FieldMaxMessages | FieldMaxBytes
	// PolicyFields are those that a subscription can have for itself.
	PolicyFields = FieldMaxDeliveries | FieldDeadLetter | FieldRedeliveryDelay | FieldRedeliveryMultiplier |
		FieldRedeliveryMaxDelay
	// AllFields are those of this version.
	AllFields = FieldExactBytes<<1 - 1
)

// configField is one field of a Config: configFields has them in the order of their bits, and of their places in the
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
}

const noLimit = 1<<64 - 1

// With gives the configuration with the fields that mask names as they are in o.
func (c Config) With(o Config, mask ConfigMask) Config {
	for i, f := range configFields {
		if mask>>i&1 != 0 {
			*f.of(&c) = *f.of(&o)
		}
	}
	return c
}

// Fields names those that are not zero.
func (c *Config) Fields() (mask ConfigMask) {
	for i, f := range configFields {
		if *f.of(c) != 0 {
			mask |= 1 << i
		}
	}
	return mask
}

// Values gives all fields in the order of their bits.
func (c *Config) Values(yield func(field ConfigMask, v uint64) bool) {
	for i, f := range configFields {
		if !yield(1<<i, *f.of(c)) {
			return
		}
	}
}

// Limited tells whether there is a limit on what the queue may hold.
func (c *Config) Limited() bool { return c.MaxMessages|c.MaxBytes != 0 }

// Retention names the fields of a Config that keep messages although all subscriptions have acknowledged them.
const Retention = FieldRetentionAge | FieldRetentionBytes | FieldRetentionMessages

// Retains tells whether messages are kept although all subscriptions have acknowledged them.
func (c *Config) Retains() bool { return c.RetentionAge|c.RetentionBytes|c.RetentionMessages != 0 }

// Plain tells whether the configuration has nothing that releases before 0.2.0 do not know.
func (c *Config) Plain() bool { return c.Fields()&^PlainFields == 0 }

// AppendConfig appends the encoding of c, which DecodeConfig reads. A configuration without what releases before 0.2.0
// did not know has the bytes that they wrote.
func AppendConfig(dst []byte, c Config) []byte { return appendConfig(dst, c, PlainFields) }

// appendConfig encodes a mask as a field of its own, behind the plain ones, so that a release that knows no masks stops
// at one.
func appendConfig(dst []byte, c Config, mask ConfigMask) []byte {
	if mask == PlainFields {
		mask = 0
	}
	n := max(plainFields, bits.Len64(uint64(c.Fields()))) // zeros at the end are left out
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

// plainFields is the number of fields that every configuration has.
const plainFields = 2

// DecodeConfig reads a configuration from the front of b. The errors wrap ErrMalformed or ErrNewerVersion.
func DecodeConfig(b []byte) (c Config, rest []byte, err error) {
	d := decoder{b: b}
	c, mask := d.config()
	if mask != PlainFields {
		d.fail("a configuration with a mask")
	}
	return c, d.b, d.err
}

func (d *decoder) config() (c Config, mask ConfigMask) {
	mask = PlainFields
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
				d.fail("a queue's configuration that is impossible")
			}
			*configFields[field].of(&c) = v
		case v != 0 && d.err == nil:
			d.err = fmt.Errorf("%w: field %d of a queue's configuration", ErrNewerVersion, field)
		}
	}
	if mask&^AllFields != 0 && d.err == nil {
		d.err = fmt.Errorf("%w: a change of fields %#x of a queue's configuration", ErrNewerVersion, mask&^AllFields)
	}
	return c, mask
}
