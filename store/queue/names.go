// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"slices"
	"strings"
)

// nameList is a list of the queues sorted by name, in short parts.
type nameList struct{ parts [][]*Queue } // no part is empty

const maxPart = 512

func (l *nameList) find(name string) (part, at int) {
	part, ok := slices.BinarySearchFunc(l.parts, name,
		func(p []*Queue, n string) int { return strings.Compare(p[0].name, n) })
	if !ok && part > 0 {
		part--
	}
	if part == len(l.parts) {
		return part, 0
	}
	at, _ = slices.BinarySearchFunc(l.parts[part], name,
		func(q *Queue, n string) int { return strings.Compare(q.name, n) })
	return part, at
}

func (l *nameList) insert(q *Queue) {
	part, at := l.find(q.name)
	if part == len(l.parts) {
		l.parts = append(l.parts, []*Queue{q})
		return
	}
	p := slices.Insert(l.parts[part], at, q)
	l.parts[part] = p
	if len(p) > maxPart {
		half := slices.Clone(p[len(p)/2:])
		clear(p[len(p)/2:])
		l.parts[part] = p[:len(p)/2]
		l.parts = slices.Insert(l.parts, part+1, half)
	}
}

func (l *nameList) remove(q *Queue) {
	part, at := l.find(q.name)
	l.parts[part] = slices.Delete(l.parts[part], at, at+1)
	if len(l.parts[part]) == 0 {
		l.parts = slices.Delete(l.parts, part, part+1)
	}
}

func (l *nameList) from(name string, yield func(*Queue) bool) {
	part, at := l.find(name)
	for ; part < len(l.parts); part++ {
		for _, q := range l.parts[part][at:] {
			if !yield(q) {
				return
			}
		}
		at = 0
	}
}
