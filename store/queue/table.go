// SPDX-License-Identifier: Apache-2.0

package queue

// table finds queues by number. Numbers are given out in rising order, so that a small map of pages, which stays in the
// processor's cache, and one more look are quicker than a map of all queues, and take a third of its memory.
type table struct {
	pages map[uint64]*tablePage
	n     int
}

const tablePageBits = 7

type tablePage struct {
	queues [1 << tablePageBits]*Queue
	n      int
}

// get gives nil if there is no such queue.
func (t *table) get(id uint64) *Queue {
	if p := t.pages[id>>tablePageBits]; p != nil {
		return p.queues[id%(1<<tablePageBits)]
	}
	return nil
}

// put adds a queue whose number is not there.
func (t *table) put(q *Queue) {
	p := t.pages[q.id>>tablePageBits]
	if p == nil {
		if t.pages == nil {
			t.pages = make(map[uint64]*tablePage)
		}
		p = new(tablePage)
		t.pages[q.id>>tablePageBits] = p
	}
	p.queues[q.id%(1<<tablePageBits)] = q
	p.n++
	t.n++
}

// remove takes out a queue that is there.
func (t *table) remove(q *Queue) {
	p := t.pages[q.id>>tablePageBits]
	p.queues[q.id%(1<<tablePageBits)] = nil
	p.n--
	t.n--
	if p.n == 0 {
		delete(t.pages, q.id>>tablePageBits)
	}
}
