// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"maps"
	"slices"
)

// entryTable is a table of opaque values that is part of the state.
type entryTable[K comparable] struct {
	entries map[K]*tableEntry
	dirty   map[K]bool // set or removed since the last Collect
	touched bool
}

type tableEntry struct {
	value  []byte
	stored bool // a key exists in the tree, possibly with an older value
}

func newEntryTable[K comparable]() entryTable[K] {
	return entryTable[K]{entries: make(map[K]*tableEntry), dirty: make(map[K]bool)}
}

// set sets an entry. It copies the value.
func (t *entryTable[K]) set(key K, value []byte) {
	value = slices.Clone(value)
	if e := t.entries[key]; e != nil {
		e.value = value
	} else {
		// The tree still has the key if the entry was removed since the last Collect.
		t.entries[key] = &tableEntry{value: value, stored: t.dirty[key]}
	}
	t.dirty[key] = true
}

// remove removes an entry. It returns false if the entry does not exist.
func (t *entryTable[K]) remove(key K) bool {
	e := t.entries[key]
	if e == nil {
		return false
	}
	delete(t.entries, key)
	if e.stored {
		t.dirty[key] = true
	} else {
		delete(t.dirty, key)
	}
	return true
}

// collect adds the changed entries to the batch of c, in the order of compare.
func (t *entryTable[K]) collect(c *collector, compare func(a, b K) int, appendKey func(dst []byte, key K) []byte) {
	for _, key := range slices.SortedFunc(maps.Keys(t.dirty), compare) {
		e := t.entries[key]
		if e == nil {
			c.batch.Deletes = append(c.batch.Deletes, appendKey(nil, key))
			continue
		}
		c.put(appendKey(c.key(), key), e.appendValue)
		e.stored = true
	}
	clear(t.dirty)
}

func (e *tableEntry) appendValue(dst []byte) []byte {
	return append(append(dst, valueVersion), e.value...)
}
