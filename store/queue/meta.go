// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"hash/crc32"
	"maps"
	"slices"
	"strings"

	"github.com/lockstep-mq/lockstep/store/txn"
)

// MetaQueue is the number that TakeTouched returns for the internal entries of the cluster. No queue has this number.
const MetaQueue = 0

// metaEntries are small named values that the cluster uses internally (settings, a plan, jobs), not visible to clients.
type metaEntries struct {
	byKey   map[string]*metaEntry
	dirty   map[string]bool // set or removed since the last Collect
	pending int             // maximum number of entries added by the transaction being checked
	touched bool
}

type metaEntry struct {
	value  []byte
	stored bool // a key exists in the tree, possibly with an older value
}

type MetaEntry struct {
	// Key has 1 to txn.MaxMetaKeyBytes bytes.
	Key string
	// Value has at most txn.MaxMetaValueBytes bytes. The caller must not change it.
	Value []byte
}

// Meta returns the value of an internal entry. The caller may keep it, but must not change it.
func (s *State) Meta(key string) (value []byte, ok bool) {
	e := s.meta.byKey[key]
	if e == nil {
		return nil, false
	}
	return e.value, true
}

// MetaPrefix returns the internal entries whose keys begin with prefix, in key order.
func (s *State) MetaPrefix(prefix string) []MetaEntry {
	var out []MetaEntry
	for _, key := range slices.Sorted(maps.Keys(s.meta.byKey)) {
		if strings.HasPrefix(key, prefix) {
			out = append(out, MetaEntry{Key: key, Value: s.meta.byKey[key].value})
		}
	}
	return out
}

// checkPutMeta counts each new entry: entries removed by the same transaction do not free space for it.
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

// changeMeta returns 1, or 0 if the entry to remove does not exist.
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
		e.value = slices.Clone(o.Raw) // do not retain the large payload
		m.dirty[key] = true
	case o.Code == txn.OpPutMeta:
		// The tree still has the key if the entry was removed since the last Collect.
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
		k.fail("invalid or duplicate entry")
		return
	}
	m.byKey[key] = &metaEntry{value: value, stored: true}
}
