// SPDX-License-Identifier: Apache-2.0

package pager

import (
	"bytes"
	"fmt"
	"iter"

	"github.com/lockstep-mq/lockstep/store/queue"
	"github.com/lockstep-mq/lockstep/store/tree"
)

// keyRange is a sequence of n consecutive keys in the tree.
type keyRange struct {
	first, last []byte
	n           int
}

func editSchedule(edit *tree.Edit, b *queue.ScheduleBatch) error {
	for key := range b.Puts {
		if err := edit.Put(key, nil); err != nil {
			return fmt.Errorf("write the schedule: %w", err)
		}
	}
	ranges, err := keysToDelete(edit, b)
	if err != nil {
		return fmt.Errorf("read the schedule: %w", err)
	}
	for _, r := range ranges {
		if r.n == 1 {
			_, err = edit.Delete(r.first)
		} else {
			err = edit.DeleteRange(r.first, append(r.last, 0))
		}
		if err != nil {
			return fmt.Errorf("write the schedule: %w", err)
		}
	}
	return nil
}

// keysToDelete returns the keys to remove that exist in the tree, grouped into ranges.
func keysToDelete(edit *tree.Edit, b *queue.ScheduleBatch) (ranges []keyRange, err error) {
	next, stop := iter.Pull(iter.Seq[[]byte](b.Deletes))
	defer stop()
	unneeded, more := next()
	if !more {
		return nil, nil
	}
	it := edit.Scan(bytes.Clone(unneeded), queue.ScheduleKeys().To)
	var current keyRange
	end := func() {
		if current.n > 0 {
			ranges = append(ranges, current)
		}
		current = keyRange{}
	}
	for more && it.Next() {
		key := it.Key()
		for more && bytes.Compare(unneeded, key) < 0 { // not in the tree
			unneeded, more = next()
		}
		if !more || !bytes.Equal(unneeded, key) {
			end()
			continue
		}
		if current.n == 0 {
			current.first = bytes.Clone(key)
		}
		current.last = append(current.last[:0], key...)
		current.n++
		unneeded, more = next()
	}
	end()
	return ranges, it.Err()
}
