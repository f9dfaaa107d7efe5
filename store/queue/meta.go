// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"hash/crc32"
	"maps"
	"slices"
	"strings"

	"github.com/lockstep-mq/lockstep/store/txn"
)

// MetaQueue is the number that TakeTouched gives for the pair's own entries. No queue ever has it.
const MetaQueue = 0

// metaEntries are small values under names that the pair keeps for itself (settings, a plan, jobs): on both nodes, in
// the log and in checkpoints like everything else, and seen by no client.
type metaEntries struct {
	byKey   map[string]*metaEntry
	dirty   map[string]bool // set or removed since the last Collect
	pending int             // how many the transaction that is being checked adds at most
	touched bool
}

type metaEntry struct {
	value  []byte
	stored bool // the tree has it, perhaps with another value
}

// MetaEntry is one of the pair's own entries.
type MetaEntry struct {
	// Key of 1 to txn.MaxMetaKeyBytes bytes.
	Key string
	// Value of at most txn.MaxMetaValueBytes bytes; not to be changed.
	Value []byte
}

// Meta gives the value of one of the pair's own entries; ok is false if there is none. The value is not to be changed,
// and may be kept.
func (s *State) Meta(key string) (value []byte, ok bool) {
	e := s.meta.byKey[key]
	if e == nil {
		return nil, false
	}
	return e.value, true
}

// MetaPrefix gives the pair's own entries whose keys begin with prefix, in the order of their keys.
func (s *State) MetaPrefix(prefix string) []MetaEntry {
	var out []MetaEntry
	for _, key := range slices.Sorted(maps.Keys(s.meta.byKey)) {
		if strings.HasPrefix(key, prefix) {
			out = append(out, MetaEntry{Key: key, Value: s.meta.byKey[key].value})
		}
	}
	return out
}

// checkPutMeta counts an entry that is not there yet each time it is set: what a transaction removes does not make room
// for what it adds.
func (s *State) checkPutMeta(o *txn.Op) txn.Code {
	if s.meta.byKey[string(o.Name)] != nil {
		return txn.OK
	}
	if len(s.meta.byKey)+s.meta.pending >= s.limits.meta {
		return txn.ErrTooManyMeta
	}
	s.meta.pending++
	return txn.OK
}

// changeMeta sets or removes an entry and gives 1, or 0 if there was nothing to remove.
func (s *State) changeMeta(o *txn.Op) (changed uint64) {
	m, key := &s.meta, string(o.Name)
	s.digest = mix(mix(s.digest, uint64(o.Code)),
		uint64(crc32.Checksum(o.Name, s.crc))<<32|uint64(crc32.Checksum(o.Raw, s.crc)))
	e := m.byKey[key]
	if e == nil && o.Code == txn.OpDeleteMeta {
		return 0
	}
	if m.dirty == nil {
		m.dirty = make(map[string]bool)
	}
	switch {
	case o.Code == txn.OpPutMeta && e != nil:
		e.value = slices.Clone(o.Raw) // the payload is large and goes away
		m.dirty[key] = true
	case o.Code == txn.OpPutMeta:
		// The tree still has the key if it was removed since the last Collect.
		m.byKey[key] = &metaEntry{value: slices.Clone(o.Raw), stored: m.dirty[key]}
		m.dirty[key] = true
	default:
		delete(m.byKey, key)
		if e.stored {
			m.dirty[key] = true
		} else {
			delete(m.dirty, key)
		}
	}
	m.touched = true
	return 1
}

func metaKey(dst []byte, key string) []byte { return append(append(dst, keyMeta), key...) }

func (e *metaEntry) appendValue(dst []byte) []byte {
	return append(append(dst, valueVersion), e.value...)
}

func (c *collector) meta(m *metaEntries) {
	for _, key := range slices.Sorted(maps.Keys(m.dirty)) {
		e := m.byKey[key]
		if e == nil {
			c.batch.Deletes = append(c.batch.Deletes, metaKey(nil, key))
			continue
		}
		c.put(metaKey(c.key(), key), e.appendValue)
		e.stored = true
	}
	m.dirty = nil
}

func (l *Loader) meta(k, v *cursor) {
	key := string(k.b)
	k.b = nil
	v.version()
	value := slices.Clone(v.b)
	v.b = nil
	m := &l.s.meta
	if key == "" || len(key) > txn.MaxMetaKeyBytes || len(value) > txn.MaxMetaValueBytes || m.byKey[key] != nil ||
		len(m.byKey) >= MaxMeta {
		k.fail("an entry that is impossible or there already")
		return
	}
	m.byKey[key] = &metaEntry{value: value, stored: true}
}
