// SPDX-License-Identifier: Apache-2.0

package txn

import (
	"encoding/binary"
	"fmt"
	"strings"
)

// MaxPolicyPriority is the maximum QueuePolicy.Priority.
const MaxPolicyPriority = 1_000_000

// QueuePolicy contains defaults and upper limits for the configuration of the queues that match a name pattern.
type QueuePolicy struct {
	// Priority, at most MaxPolicyPriority, selects among the policies that match a queue, separately for defaults and
	// limits. The policy with the highest priority applies; of several, the one with the first pattern in byte order.
	Priority uint64
	// Defaults contains values for fields that are not set on a queue itself. Only DefaultFields are allowed; 0 sets
	// no value.
	Defaults Config
	// Limits contains maximum values. Only LimitFields are allowed; 0 means no limit.
	Limits Config
}

// AppendQueuePolicy appends the encoding of p to dst: the priority as uvarint, the defaults and the limits.
func AppendQueuePolicy(dst []byte, p *QueuePolicy) []byte {
	return AppendConfig(AppendConfig(binary.AppendUvarint(dst, p.Priority), p.Defaults), p.Limits)
}

// DecodeQueuePolicy decodes the result of AppendQueuePolicy. The errors wrap ErrMalformed, ErrNewerVersion or
// ErrNoDeadLetter.
func DecodeQueuePolicy(b []byte) (p QueuePolicy, err error) {
	d := decoder{b: b}
	p.Priority = d.uvarint()
	for _, c := range [...]*Config{&p.Defaults, &p.Limits} {
		var rest []byte
		if d.err == nil {
			*c, rest, d.err = DecodeConfig(d.b)
			d.b = rest
		}
	}
	if d.err == nil && len(d.b) > 0 {
		d.fail("trailing bytes after a policy")
	}
	if d.err == nil {
		d.err = p.check()
	}
	return p, d.err
}

func (p *QueuePolicy) check() error {
	switch {
	case p.Priority > MaxPolicyPriority:
		return fmt.Errorf("%w: priority %d of a policy, maximum is %d", ErrMalformed, p.Priority, MaxPolicyPriority)
	case p.Defaults.Fields()&^DefaultFields != 0 || p.Limits.Fields()&^LimitFields != 0:
		return fmt.Errorf("%w: policy with a field that it cannot set", ErrMalformed)
	case p.Defaults.Fields()|p.Limits.Fields() == 0:
		return fmt.Errorf("%w: policy without an option", ErrMalformed)
	case p.Defaults.Overflow == OverflowDeadLetterHead && p.Defaults.DeadLetter == NoQueue:
		return ErrNoDeadLetter
	}
	return nil
}

// Apply returns the effective configuration of a queue. c is the configuration set on the queue itself, and own the
// set of its explicit fields. defaults and limits are the policies that apply, or nil. last is true for the
// dead-letter queues of policies, and for the queues to which these queues dead-letter. For such queues, Apply omits
// the dead-letter queue in defaults, to avoid cycles, and the options that would discard messages without a
// dead-letter queue. Without a dead-letter queue, Apply replaces OverflowDeadLetterHead with OverflowReject.
func (c Config) Apply(own ConfigMask, defaults, limits *QueuePolicy, last bool) Config {
	if defaults != nil {
		fields := defaults.Defaults.Fields() &^ own
		if last && fields&FieldDeadLetter != 0 {
			fields &^= FieldDeadLetter | FieldDeadLetterExpired | FieldMaxDeliveries
		}
		if c = c.With(defaults.Defaults, fields); fields&(FieldMaxBytes|FieldRetentionBytes) != 0 {
			c.ExactBytes = 1
		}
	}
	if limits != nil {
		for i, f := range configFields {
			v, most := f.of(&c), *f.of(&limits.Limits)
			if most == 0 || *v != 0 && *v <= most {
				continue
			}
			if *v = most; FieldMaxBytes>>i == 1 {
				c.ExactBytes = 1
			}
		}
	}
	if c.Overflow == OverflowDeadLetterHead && c.DeadLetter == NoQueue {
		c.Overflow = OverflowReject
	}
	return c
}

// PutPolicy adds an operation that sets the policy of a pattern.
func (b *Builder) PutPolicy(pattern string, p QueuePolicy) {
	if err := CheckPattern(pattern); err != nil {
		b.fail(err)
	}
	if err := p.check(); err != nil {
		b.fail(err)
	}
	b.begin(OpPolicy)
	b.buf = AppendQueuePolicy(append(appendString(b.buf, pattern), 1), &p)
	b.end()
}

// DeletePolicy adds an operation that deletes the policy of a pattern.
func (b *Builder) DeletePolicy(pattern string) {
	if err := CheckPattern(pattern); err != nil {
		b.fail(err)
	}
	b.begin(OpPolicy)
	b.buf = append(appendString(b.buf, pattern), 0)
	b.end()
}

func (o *Op) decodePolicy(d *decoder) {
	o.Name = d.bytes(MaxNameBytes)
	set := d.flag()
	if d.err == nil {
		d.err = CheckPattern(string(o.Name))
	}
	o.Raw, d.b = d.b, nil
	if d.err != nil || !set && len(o.Raw) == 0 {
		return
	}
	if !set {
		d.fail("deletion of a policy with options")
		return
	}
	_, d.err = DecodeQueuePolicy(o.Raw)
}

// Policy returns the policy that an OpPolicy sets. ok is false if the operation deletes the policy.
func (o *Op) Policy() (p QueuePolicy, ok bool) {
	if o.Code != OpPolicy || len(o.Raw) == 0 {
		return p, false
	}
	p, err := DecodeQueuePolicy(o.Raw)
	return p, err == nil
}

// CheckPattern verifies a pattern of queue names. It must have 1 to MaxNameBytes characters: those allowed in queue
// names, `*` and `?`. The error wraps ErrInvalidName.
func CheckPattern(pattern string) error {
	if pattern == "" || len(pattern) > MaxNameBytes {
		return fmt.Errorf("%w: pattern of %d bytes, must have 1 to %d", ErrInvalidName, len(pattern), MaxNameBytes)
	}
	for i := range len(pattern) {
		if c := pattern[i]; !isAlphanumeric(c) && !strings.ContainsRune("._/-{}#*?", rune(c)) {
			return fmt.Errorf("%w: pattern %.40q contains %q; only A-Z a-z 0-9 . _ / - { } # * ? are allowed",
				ErrInvalidName, pattern, c)
		}
	}
	return nil
}
