// SPDX-License-Identifier: Apache-2.0

package txn

import (
	"encoding/binary"
	"fmt"
)

// SubscriptionOptions contains the filter and the configuration overrides of a subscription. The zero value has
// neither.
type SubscriptionOptions struct {
	// Filter is the filter expression, at most MaxFilterBytes bytes; "" matches all messages. Log and state do not
	// evaluate it.
	Filter string
	// Own is the set of PolicyFields that the subscription overrides. Policy contains their values, which may be 0; its
	// other fields must be 0.
	Own    ConfigMask
	Policy Config
}

// Tags of options, as stored.
const (
	optionFilter = 1
	optionPolicy = 2
)

const alterFilter = 1

// AppendSubscriptionOptions appends the encoding of the options to dst, in tag order: a tag, a length and the bytes
// of each option that is not empty.
func AppendSubscriptionOptions(dst []byte, o SubscriptionOptions) []byte {
	if o.Filter != "" {
		dst = appendString(append(dst, optionFilter), o.Filter)
	}
	if o.Own == 0 {
		return dst
	}
	policy := binary.AppendUvarint(nil, uint64(o.Own))
	for field, v := range o.Policy.Values {
		if o.Own&field != 0 {
			policy = binary.AppendUvarint(policy, v)
		}
	}
	dst = binary.AppendUvarint(append(dst, optionPolicy), uint64(len(policy)))
	return append(dst, policy...)
}

// DecodeSubscriptionOptions decodes the result of AppendSubscriptionOptions. The errors wrap ErrMalformed or
// ErrNewerVersion.
func DecodeSubscriptionOptions(b []byte) (o SubscriptionOptions, err error) {
	d := decoder{b: b}
	for last := byte(0); len(d.b) > 0; {
		tag := d.u8()
		switch {
		case tag <= last:
			d.fail("subscription options out of order")
		case tag == optionFilter:
			if o.Filter = string(d.bytes(MaxFilterBytes)); o.Filter == "" {
				d.fail("empty filter")
			}
		case tag == optionPolicy:
			in := decoder{b: d.bytes(MaxFilterBytes), err: d.err}
			in.policy(&o)
			d.err = in.err
		default:
			return o, fmt.Errorf("%w: subscription option %d", ErrNewerVersion, tag)
		}
		last = tag
	}
	return o, d.err
}

func (d *decoder) policy(o *SubscriptionOptions) {
	o.Own = ConfigMask(d.uvarint())
	switch {
	case d.err != nil:
		return
	case o.Own == 0:
		d.fail("empty policy")
	case o.Own&^PolicyFields != 0:
		d.err = fmt.Errorf("%w: subscription policy fields %#x", ErrNewerVersion, o.Own&^PolicyFields)
		return
	}
	for i, f := range configFields {
		if o.Own>>i&1 == 0 {
			continue
		}
		v := d.uvarint()
		if v > f.most {
			d.fail("invalid subscription policy")
		}
		*f.of(&o.Policy) = v
	}
	if d.err == nil && len(d.b) > 0 {
		d.fail("trailing bytes after a policy")
	}
}

// checkOptions records an error for options that DecodeSubscriptionOptions rejects.
func (b *Builder) checkOptions(o *SubscriptionOptions) {
	if len(o.Filter) > MaxFilterBytes {
		b.fail(fmt.Errorf("%w: filter of %d bytes, limit %d", ErrTooLarge, len(o.Filter), MaxFilterBytes))
	}
	if o.Own&^PolicyFields != 0 || o.Policy != (Config{}).With(o.Policy, o.Own) {
		b.fail(fmt.Errorf("%w: subscription policy with a field that it cannot override", ErrMalformed))
	}
	for i, f := range configFields {
		if v := *f.of(&o.Policy); v > f.most {
			b.fail(fmt.Errorf("%w: subscription policy field %d is %d, limit %d", ErrMalformed, i, v, f.most))
		}
	}
}

// SubscriptionChange contains the changed options of an OpAlterSubscription and their new values.
type SubscriptionChange struct {
	// Filter reports whether the filter is replaced.
	Filter bool
	// Fields are the changed policy fields. The subscription overrides the fields that are also in Options.Own. It no
	// longer overrides the other changed fields.
	Fields  ConfigMask
	Options SubscriptionOptions
}

// Apply returns the options of a subscription after the change.
func (c *SubscriptionChange) Apply(o SubscriptionOptions) SubscriptionOptions {
	if c.Filter {
		o.Filter = c.Options.Filter
	}
	o.Own = o.Own&^c.Fields | c.Options.Own
	o.Policy = Config{}.With(o.Policy.With(c.Options.Policy, c.Fields), o.Own)
	return o
}

// AlterSubscription adds an operation that changes the options of a subscription.
func (b *Builder) AlterSubscription(queue uint64, sub uint32, c SubscriptionChange) {
	b.checkOptions(&c.Options)
	if err := c.check(); err != nil {
		b.fail(err)
	}
	flags := byte(0)
	if c.Filter {
		flags = alterFilter
	}
	b.begin(OpAlterSubscription, queue, uint64(sub))
	b.buf = binary.AppendUvarint(append(b.buf, flags), uint64(c.Fields))
	b.buf = AppendSubscriptionOptions(b.buf, c.Options)
	b.end()
}

func (c *SubscriptionChange) check() error {
	if c.Fields&^PolicyFields != 0 || c.Options.Own&^c.Fields != 0 || !c.Filter && c.Options.Filter != "" ||
		!c.Filter && c.Fields == 0 {
		return fmt.Errorf("%w: empty subscription change, or unknown fields", ErrMalformed)
	}
	return nil
}

func (o *Op) alterSubscription(d *decoder) {
	o.Queue, o.Sub = d.uvarint(), d.sub()
	o.Raw, d.b = d.b, nil
	if _, err := o.subscriptionChange(); d.err == nil {
		d.err = err
	}
}

func (o *Op) subscriptionChange() (c SubscriptionChange, err error) {
	d := decoder{b: o.Raw}
	flags := d.u8()
	c.Filter, c.Fields = flags&alterFilter != 0, ConfigMask(d.uvarint())
	if d.err != nil {
		return c, d.err
	}
	if flags&^alterFilter != 0 || c.Fields&^PolicyFields != 0 {
		return c, fmt.Errorf("%w: subscription change", ErrNewerVersion)
	}
	if c.Options, err = DecodeSubscriptionOptions(d.b); err != nil {
		return c, err
	}
	err = c.check()
	return c, err
}

// SubscriptionChange returns the change of an OpAlterSubscription. Other operations have none.
func (o *Op) SubscriptionChange() (c SubscriptionChange) {
	if o.Code == OpAlterSubscription {
		c, _ = o.subscriptionChange()
	}
	return c
}
