// SPDX-License-Identifier: Apache-2.0

package queue

// table maps numbers to queues. Each page contains consecutive numbers. Since numbers are assigned in ascending order,
// the table needs less memory than a map of all queues.
type table struct {
	pages map[uint64]*tablePage
	n     int
}

const tablePageBits = 7

type tablePage struct {
	queues [1 << tablePageBits]*Queue
	n      int
}

func (t *table) get(id uint64) *Queue {
	if p := t.pages[id>>tablePageBits]; p != nil {
		return p.queues[id%(1<<tablePageBits)]
	}
	return nil
}

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

func (t *table) remove(q *Queue) {
	p := t.pages[q.id>>tablePageBits]
	p.queues[q.id%(1<<tablePageBits)] = nil
	p.n--
	t.n--
	if p.n == 0 {
		delete(t.pages, q.id>>tablePageBits)
	}
}
