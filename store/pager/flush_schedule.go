// SPDX-License-Identifier: Apache-2.0

package pager

import (
	"bytes"
	"fmt"
	"iter"

	"github.com/lockstep-mq/lockstep/store/queue"
	"github.com/lockstep-mq/lockstep/store/tree"
)

// keyRun is a sequence of consecutive keys in the tree, first and last included.
type keyRun struct {
	first, last []byte
	n           int
}

// editSchedule adds and removes keys of the schedule index.
func editSchedule(edit *tree.Edit, b *queue.ScheduleBatch) error {
	for key := range b.Puts {
		if err := edit.Put(key, nil); err != nil {
			return fmt.Errorf("write the schedule: %w", err)
		}
	}
	runs, err := runsToDelete(edit, b)
	if err != nil {
		return fmt.Errorf("read the schedule: %w", err)
	}
	for _, r := range runs {
		if r.n == 1 {
			_, err = edit.Delete(r.first)
		} else {
			err = edit.DeleteRange(r.first, append(r.last, 0)) // up to and including the last key
		}
		if err != nil {
			return fmt.Errorf("write the schedule: %w", err)
		}
	}
	return nil
}

// runsToDelete returns the keys to remove that exist in the tree, grouped into ranges. Due messages are removed in
// index order, so there are mostly few ranges. Removing a range costs little more than removing a key.
func runsToDelete(edit *tree.Edit, b *queue.ScheduleBatch) (runs []keyRun, err error) {
	next, stop := iter.Pull(iter.Seq[[]byte](b.Deletes))
	defer stop()
	gone, more := next()
	if !more {
		return nil, nil
	}
	it := edit.Scan(bytes.Clone(gone), queue.ScheduleKeys().To)
	var run keyRun
	end := func() {
		if run.n > 0 {
			runs = append(runs, run)
		}
		run = keyRun{}
	}
	for more && it.Next() {
		key := it.Key()
		for more && bytes.Compare(gone, key) < 0 { // not in the tree
			gone, more = next()
		}
		if !more || !bytes.Equal(gone, key) {
			end()
			continue
		}
		if run.n == 0 {
			run.first = bytes.Clone(key)
		}
		run.last = append(run.last[:0], key...)
		run.n++
		gone, more = next()
	}
	end()
	return runs, it.Err()
}
