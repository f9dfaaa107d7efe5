// SPDX-License-Identifier: Apache-2.0

package txn

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
	"slices"
)

// Limits of the access table.
const (
	// MaxAccessNameBytes is the maximum length of an entry's name; the minimum is 1.
	MaxAccessNameBytes = 255
	// MaxAccessValueBytes is the maximum length of an entry's value.
	MaxAccessValueBytes = 4 << 10
	// MaxAccessChanges is the maximum number of entries that one operation changes.
	MaxAccessChanges = 10_000
)

// AccessChange sets or removes an entry of the access table. Log and state treat the entries as opaque.
type AccessChange struct {
	// Kind is the kind of the entry. Each kind is a separate namespace.
	Kind byte
	// Name has 1 to MaxAccessNameBytes bytes. If returned by an Op, it aliases the payload.
	Name []byte
	// Remove reports whether the entry is removed instead of set. Removing a missing entry is not an error.
	Remove bool
	// Value is the value to set, at most MaxAccessValueBytes bytes. If returned by an Op, it aliases the payload.
	Value []byte
}

func (c *AccessChange) compare(o *AccessChange) int {
	return cmp.Or(cmp.Compare(c.Kind, o.Kind), bytes.Compare(c.Name, o.Name))
}

// ChangeAccess adds an operation that changes the access table if the table still has the expected version. The
// version is the logical number of the last change, or 0. Each entry may occur once; an empty list changes only the
// version. requested is a checksum of the client's request, which Op.Fingerprint covers instead of the changes.
func (b *Builder) ChangeAccess(expected uint64, requested uint32, changes []AccessChange) {
	if len(changes) > MaxAccessChanges {
		b.fail(fmt.Errorf("%w: %d changes of the access table, limit %d", ErrTooLarge, len(changes),
			MaxAccessChanges))
	}
	changes = slices.Clone(changes)
	slices.SortFunc(changes, func(x, y AccessChange) int { return x.compare(&y) })
	b.begin(OpAccess, expected)
	b.buf = binary.LittleEndian.AppendUint32(b.buf, requested)
	b.buf = binary.AppendUvarint(b.buf, uint64(len(changes)))
	for i := range changes {
		c := &changes[i]
		if err := c.check(); err != nil {
			b.fail(err)
		}
		if i > 0 && changes[i-1].compare(c) == 0 {
			b.fail(fmt.Errorf("%w: duplicate change of access table entry %q", ErrMalformed, c.Name))
		}
		b.buf = append(b.buf, c.Kind)
		b.buf = append(binary.AppendUvarint(b.buf, uint64(len(c.Name))), c.Name...)
		if c.Remove {
			b.buf = append(b.buf, 0)
			continue
		}
		b.buf = append(b.buf, 1)
		b.buf = append(binary.AppendUvarint(b.buf, uint64(len(c.Value))), c.Value...)
	}
	b.end()
}

func (c *AccessChange) check() error {
	if len(c.Name) == 0 || len(c.Name) > MaxAccessNameBytes {
		return fmt.Errorf("%w: access table name of %d bytes, must have 1 to %d", ErrInvalidName,
			len(c.Name), MaxAccessNameBytes)
	}
	if len(c.Value) > MaxAccessValueBytes {
		return fmt.Errorf("%w: access table entry of %d bytes, limit %d", ErrTooLarge, len(c.Value),
			MaxAccessValueBytes)
	}
	return nil
}

func (o *Op) decodeAccess(d *decoder) {
	o.Number = d.uvarint()
	o.Requested = d.u32()
	o.Count = d.count(MaxAccessChanges)
	o.Raw = d.b
	var last AccessChange
	for i := range o.Count {
		c := d.accessChange()
		if d.err == nil && (len(c.Name) == 0 || i > 0 && last.compare(&c) >= 0) {
			d.fail("access table entry without a name, or out of order")
		}
		if d.err != nil {
			return
		}
		last = c
	}
	o.Raw = o.Raw[:len(o.Raw)-len(d.b)]
}

func (d *decoder) accessChange() (c AccessChange) {
	c.Kind = d.u8()
	c.Name = d.bytes(MaxAccessNameBytes)
	if c.Remove = !d.flag(); !c.Remove {
		c.Value = d.bytes(MaxAccessValueBytes)
	}
	return c
}

// AccessChanges iterates over the changes of an OpAccess, ordered by kind and name.
func (o *Op) AccessChanges(yield func(c AccessChange) bool) {
	if o.Code != OpAccess {
		return
	}
	d := decoder{b: o.Raw}
	for range o.Count {
		if c := d.accessChange(); d.err != nil || !yield(c) {
			return
		}
	}
}
