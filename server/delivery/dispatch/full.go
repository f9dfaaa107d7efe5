// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"cmp"
	"slices"
	"time"
)

// fullFor is how long dead letters count as pending. Tasks that move them retry about every second.
const fullFor = 5 * time.Second

// RecordFull records that dead letters are pending.
func (r *Registry) RecordFull(e *FullError) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.full == nil {
		r.full = make(map[FullError]time.Time)
	}
	r.full[*e] = time.Now()
}

// Full returns the queues with pending dead letters, by name.
func (r *Registry) Full() (list []FullError) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for e, at := range r.full {
		if time.Since(at) > fullFor {
			delete(r.full, e)
			continue
		}
		list = append(list, e)
	}
	slices.SortFunc(list, func(a, b FullError) int {
		return cmp.Or(cmp.Compare(a.Queue, b.Queue), cmp.Compare(a.DeadLetter, b.DeadLetter))
	})
	return list
}
