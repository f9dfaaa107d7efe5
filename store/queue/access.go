// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"cmp"
	"encoding/binary"
	"hash/crc32"
	"maps"
	"math"
	"slices"

	"github.com/lockstep-mq/lockstep/store/mutate"
	"github.com/lockstep-mq/lockstep/store/txn"
)

// AccessQueue represents the access table in the result of TakeTouched. No queue has this number.
const AccessQueue = math.MaxUint64 - 1

// accessTable contains the access rules: opaque entries by kind and name, and one version for the whole table.
//
// Invariant: a table that was never changed has version 0 and no entries. Such a table is not stored in the tree.
type accessTable struct {
	entryTable[accessName]

	version uint64 // logical number of the last change
	changed bool   // the version, and possibly entries, changed since the last Collect
}

type accessName struct {
	kind byte
	name string
}

// AccessEntry is an entry of the access table.
type AccessEntry struct {
	Kind byte
	// Name has 1 to txn.MaxAccessNameBytes bytes.
	Name string
	// Value has at most txn.MaxAccessValueBytes bytes. The caller may retain it, but must not modify it.
	Value []byte
}

// Access returns the version and the entries of the access table. The version is the logical number of the last change,
// or 0 without a change. The entries are ordered by kind and name.
func (s *State) Access() (version uint64, entries []AccessEntry) {
	t := &s.access
	for _, name := range slices.SortedFunc(maps.Keys(t.entries), accessName.compare) {
		entries = append(entries, AccessEntry{Kind: name.kind, Name: name.name, Value: t.entries[name].value})
	}
	return t.version, entries
}

func (n accessName) compare(o accessName) int {
	return cmp.Or(cmp.Compare(n.kind, o.kind), cmp.Compare(n.name, o.name))
}

// checkAccess rejects a change that expects another version of the table (INV-20), or that exceeds the entry limit.
func (s *State) checkAccess(o *txn.Op) txn.Code {
	t := &s.access
	if o.Number != t.version && !mutate.Off("INV-20-change-of-another-table-is-applied") {
		return txn.ErrAccessChanged
	}
	n := len(t.entries)
	for c := range o.AccessChanges {
		switch there := t.entries[accessName{c.Kind, string(c.Name)}] != nil; {
		case c.Remove && there:
			n--
		case !c.Remove && !there:
			n++
		}
	}
	if n > s.limits.access {
		return txn.ErrTooManyAccess
	}
	return txn.OK
}

// changeAccess applies an OpAccess. It returns the number of entries set, plus the number of existing entries removed.
func (s *State) changeAccess(o *txn.Op, logical uint64) (changed uint64) {
	t := &s.access
	s.digest = mix(mix(s.digest, uint64(o.Code)), uint64(crc32.Checksum(o.Raw, s.crc)))
	for c := range o.AccessChanges {
		name := accessName{c.Kind, string(c.Name)}
		if c.Remove && !t.remove(name) {
			continue
		}
		if !c.Remove {
			t.set(name, c.Value)
		}
		changed++
	}
	t.version, t.changed, t.touched = logical, true, true
	return changed
}

func accessKey(dst []byte, n accessName) []byte {
	return append(append(dst, keyAccess, n.kind), n.name...)
}

// appendValue appends the encoded version, which is stored under the key without kind and name.
func (t *accessTable) appendValue(dst []byte) []byte {
	return binary.AppendUvarint(append(dst, valueVersion), t.version)
}

func (c *collector) access(t *accessTable) {
	if !t.changed {
		return
	}
	t.changed = false
	c.put(append(c.key(), keyAccess), t.appendValue)
	t.collect(c, accessName.compare, accessKey)
}

func (t *accessTable) all(add func(key []byte, value func([]byte) []byte)) {
	if t.version == 0 {
		return
	}
	add([]byte{keyAccess}, t.appendValue)
	for name, e := range t.entries {
		add(accessKey(nil, name), e.appendValue)
	}
}

func (l *Loader) access(k, v *cursor) {
	t := &l.s.access
	v.version()
	if len(k.b) == 0 {
		if t.version = v.uvarint(math.MaxUint64); v.err == nil && t.version == 0 {
			v.fail("access table without a change")
		}
		return
	}
	name := accessName{kind: k.u8(), name: string(k.b)}
	k.b = nil
	value := slices.Clone(v.b)
	v.b = nil
	if name.name == "" || len(name.name) > txn.MaxAccessNameBytes || len(value) > txn.MaxAccessValueBytes ||
		t.entries[name] != nil || len(t.entries) >= MaxAccess {
		k.fail("invalid or duplicate access table entry")
		return
	}
	t.entries[name] = &tableEntry{value: value, stored: true}
}

func (t *accessTable) check(bad func(string, ...any)) {
	if t.version == 0 && len(t.entries) > 0 {
		bad("access table has %d entries, but no version", len(t.entries))
	}
}
