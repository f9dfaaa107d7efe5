// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"encoding/binary"
	"hash/crc32"
	"maps"
	"slices"
	"strings"

	"github.com/lockstep-mq/lockstep/store/mutate"
	"github.com/lockstep-mq/lockstep/store/txn"
)

// MetaQueue represents the internal entries in the result of TakeTouched. No queue has this number.
const MetaQueue = 0

type metaEntries struct {
	entryTable[string]

	pending int // maximum number of entries added by the transaction being checked
}

// MetaEntry is an internal entry: a replicated key and value.
type MetaEntry struct {
	// Key has 1 to txn.MaxMetaKeyBytes bytes.
	Key string
	// Value has at most txn.MaxMetaValueBytes bytes. The caller must not modify it.
	Value []byte
}

// Meta returns the value of an internal entry. The caller may retain it, but must not modify it.
func (s *State) Meta(key string) (value []byte, ok bool) {
	e := s.meta.entries[key]
	if e == nil {
		return nil, false
	}
	return e.value, true
}

// MetaPrefix returns the internal entries with the given key prefix, in key order.
func (s *State) MetaPrefix(prefix string) []MetaEntry {
	var out []MetaEntry
	for _, key := range slices.Sorted(maps.Keys(s.meta.entries)) {
		if strings.HasPrefix(key, prefix) {
			out = append(out, MetaEntry{Key: key, Value: s.meta.entries[key].value})
		}
	}
	return out
}

// checkMeta verifies the version of the entry for an OpSwapMeta (INV-24), and the limit on the number of entries.
// Entries that the same transaction removes still count toward the limit.
func (s *State) checkMeta(o *txn.Op) txn.Code {
	if o.Code == txn.OpSwapMeta && !s.hasVersion(o) && !mutate.Off("INV-24-swap-of-another-version-is-applied") {
		return txn.ErrMetaChanged
	}
	if s.meta.entries[string(o.Name)] != nil {
		return txn.OK
	}
	if len(s.meta.entries)+s.meta.pending >= s.limits.meta {
		return txn.ErrTooManyMeta
	}
	s.meta.pending++
	return txn.OK
}

// changeMeta applies an OpPutMeta or OpDeleteMeta. It returns 1, or 0 if the entry to remove does not exist.
func (s *State) changeMeta(o *txn.Op) (changed uint64) {
	key := string(o.Name)
	s.digest = mix(mix(s.digest, uint64(o.Code)),
		uint64(crc32.Checksum(o.Name, s.crc))<<32|uint64(crc32.Checksum(o.Raw, s.crc)))
	if o.Code == txn.OpPutMeta {
		s.meta.set(key, o.Raw)
	} else if !s.meta.remove(key) {
		return 0
	}
	s.meta.touched = true
	return 1
}

// VersionedMeta is the content of an entry that a txn.OpSwapMeta has written.
type VersionedMeta struct {
	// Version is the logical number of the entry's last change.
	Version uint64
	// Sequence is the FirstSequence of the last operation before the change in its transaction, usually a publish.
	// Forwards do not count. It is 0 if there was no such operation.
	Sequence uint64
	// Value is the rest of the entry. The caller must not modify it.
	Value []byte
}

// ParseVersioned decodes the value of an internal entry that a txn.OpSwapMeta has written. ok is false if entry is too
// short for such a value.
func ParseVersioned(entry []byte) (v VersionedMeta, ok bool) {
	if len(entry) < txn.MetaVersionBytes {
		return v, false
	}
	return VersionedMeta{
		Version: binary.BigEndian.Uint64(entry), Sequence: binary.BigEndian.Uint64(entry[8:]),
		Value: entry[txn.MetaVersionBytes:],
	}, true
}

// hasVersion reports whether the entry has the expected version of an OpSwapMeta.
func (s *State) hasVersion(o *txn.Op) bool {
	e := s.meta.entries[string(o.Name)]
	if e == nil {
		return o.Number == 0
	}
	v, ok := ParseVersioned(e.value)
	return ok && v.Version == o.Number
}

// swapMeta applies an OpSwapMeta. sequence is the VersionedMeta.Sequence.
func (s *State) swapMeta(o *txn.Op, logical, sequence uint64) {
	value := make([]byte, 0, txn.MetaVersionBytes+len(o.Raw))
	value = binary.BigEndian.AppendUint64(value, logical)
	value = binary.BigEndian.AppendUint64(value, sequence)
	value = append(value, o.Raw...)
	s.digest = mix(mix(s.digest, uint64(o.Code)),
		uint64(crc32.Checksum(o.Name, s.crc))<<32|uint64(crc32.Checksum(value, s.crc)))
	s.meta.set(string(o.Name), value)
	s.meta.touched = true
}

func metaKey(dst []byte, key string) []byte { return append(append(dst, keyMeta), key...) }

func (l *Loader) meta(k, v *cursor) {
	key := string(k.b)
	k.b = nil
	v.version()
	value := slices.Clone(v.b)
	v.b = nil
	m := &l.s.meta
	if key == "" || len(key) > txn.MaxMetaKeyBytes || len(value) > txn.MaxMetaValueBytes || m.entries[key] != nil ||
		len(m.entries) >= MaxMeta {
		k.fail("invalid or duplicate entry")
		return
	}
	m.entries[key] = &tableEntry{value: value, stored: true}
}
