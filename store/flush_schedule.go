// SPDX-License-Identifier: Apache-2.0

package store

import (
	"bytes"
	"fmt"
	"iter"

	"github.com/lockstep-mq/lockstep/store/queue"
	"github.com/lockstep-mq/lockstep/store/tree"
)

// keyRun is a run of keys that follow each other in the tree, first and last included.
type keyRun struct {
	first, last []byte
	n           int
}

// editSchedule sets and removes keys of the schedule index.
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
			err = edit.DeleteRange(r.first, append(r.last, 0)) // up to just behind the last one
		}
		if err != nil {
			return fmt.Errorf("write the schedule: %w", err)
		}
	}
	return nil
}

// runsToDelete finds the keys to be removed that the tree has, in runs: what is due goes in the order of the index, so
// that they are mostly few runs, and to remove one costs little more than to remove a key.
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
		for more && bytes.Compare(gone, key) < 0 { // the tree does not have it
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
