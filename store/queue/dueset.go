// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"slices"
	"sort"

	"github.com/lockstep-mq/lockstep/store/txn"
)

// dueSet is an ordered set of schedule entries, implemented as a list of short sorted lists. Most insertions and
// removals are at its ends.
type dueSet struct {
	blocks [][]txn.Due // no block is empty
	n      int
}

const dueBlock = 512

func (s *dueSet) find(e txn.Due) (block, at int, found bool) {
	block = max(0, sort.Search(len(s.blocks), func(i int) bool { return txn.Due.Compare(s.blocks[i][0], e) > 0 })-1)
	if len(s.blocks) == 0 {
		return 0, 0, false
	}
	at, found = slices.BinarySearchFunc(s.blocks[block], e, txn.Due.Compare)
	return block, at, found
}

func (s *dueSet) add(e txn.Due) {
	k, i, found := s.find(e)
	switch {
	case found:
		return
	case len(s.blocks) == 0:
		s.blocks = append(s.blocks, append(make([]txn.Due, 0, 4), e))
	case len(s.blocks[k]) < dueBlock:
		s.blocks[k] = slices.Insert(s.blocks[k], i, e)
	case k == len(s.blocks)-1 && i == dueBlock: // appending in order leaves full blocks
		s.blocks = append(s.blocks, append(make([]txn.Due, 0, dueBlock), e))
	default:
		b := s.blocks[k]
		upper := append(make([]txn.Due, 0, dueBlock), b[dueBlock/2:]...)
		s.blocks[k] = b[:dueBlock/2]
		s.blocks = slices.Insert(s.blocks, k+1, upper)
		if i > dueBlock/2 {
			k, i = k+1, i-dueBlock/2
		}
		s.blocks[k] = slices.Insert(s.blocks[k], i, e)
	}
	s.n++
}

func (s *dueSet) remove(e txn.Due) bool {
	k, i, found := s.find(e)
	if !found {
		return false
	}
	s.n--
	if s.blocks[k] = slices.Delete(s.blocks[k], i, i+1); len(s.blocks[k]) == 0 {
		s.blocks = slices.Delete(s.blocks, k, k+1)
	}
	return true
}

func (s *dueSet) has(e txn.Due) bool {
	if len(s.blocks) == 0 {
		return false
	}
	if last := s.blocks[len(s.blocks)-1]; e.Compare(last[len(last)-1]) > 0 {
		return false // the usual case: entries are removed in order, so the remaining ones are later
	}
	_, _, found := s.find(e)
	return found
}

func (s *dueSet) after(e txn.Due, yield func(txn.Due) bool) {
	k, i, found := s.find(e)
	if found {
		i++
	}
	for ; k < len(s.blocks); k, i = k+1, 0 {
		for _, x := range s.blocks[k][i:] {
			if !yield(x) {
				return
			}
		}
	}
}

func (s *dueSet) all(yield func(txn.Due) bool) { s.after(txn.Due{}, yield) }
