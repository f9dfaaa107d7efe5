// SPDX-License-Identifier: Apache-2.0

package session

import (
	"slices"

	"github.com/lockstep-mq/lockstep/amqp/wire"
)

// delivery is the state of a delivery until both sides have settled it.
type delivery struct {
	link     *Link // nil: the slot is free
	ref      uint64
	state    wire.DeliveryState // last state reported by the peer; valid if known is set
	known    bool
	settled  bool // the peer has settled the delivery
	answered bool // the outcome was sent, and the peer must settle the delivery
}

// deliveries contains the deliveries of one direction of a session, in a ring by delivery number. Old deliveries move
// to a map, so that the ring stays small.
type deliveries struct {
	ring []delivery // its length is a power of two
	base uint32     // number of the first delivery in the ring
	n    int        // number of slots from base on, including gaps
	live int        // deliveries in ring and old
	old  map[uint32]*delivery
}

const minRing = 16

// add adds a slot for a number above all earlier ones.
func (d *deliveries) add(id uint32) *delivery {
	if d.n > 0 && uint32(d.n) != id-d.base { // numbers were skipped
		d.moveToMap(d.n)
		d.n = 0
	}
	if d.n == 0 {
		d.base = id
	}
	if d.n == len(d.ring) {
		d.grow()
	}
	e := &d.ring[id&uint32(len(d.ring)-1)]
	*e = delivery{}
	d.n++
	d.live++
	return e
}

func (d *deliveries) grow() {
	if inRing := d.live - len(d.old); len(d.ring) > 0 && inRing <= len(d.ring)/4 {
		d.moveToMap(d.n / 2)
		return
	}
	ring := make([]delivery, max(minRing, 2*len(d.ring)))
	for i := range d.n {
		id := d.base + uint32(i)
		ring[id&uint32(len(ring)-1)] = d.ring[id&uint32(len(d.ring)-1)]
	}
	d.ring = ring
}

func (d *deliveries) moveToMap(n int) {
	for range n {
		e := &d.ring[d.base&uint32(len(d.ring)-1)]
		if e.link != nil {
			if d.old == nil {
				d.old = make(map[uint32]*delivery)
			}
			moved := *e
			d.old[d.base] = &moved
			*e = delivery{}
		}
		d.base++
		d.n--
	}
	d.trim()
}

func (d *deliveries) trim() {
	for d.n > 0 && d.ring[d.base&uint32(len(d.ring)-1)].link == nil {
		d.base++
		d.n--
	}
}

func (d *deliveries) get(id uint32) *delivery {
	if i := id - d.base; i < uint32(d.n) {
		if e := &d.ring[id&uint32(len(d.ring)-1)]; e.link != nil {
			return e
		}
		return nil
	}
	return d.old[id]
}

func (d *deliveries) remove(id uint32) {
	if i := id - d.base; i < uint32(d.n) {
		if e := &d.ring[id&uint32(len(d.ring)-1)]; e.link != nil {
			*e = delivery{}
			d.live--
			d.trim()
		}
		return
	}
	if _, ok := d.old[id]; ok {
		delete(d.old, id)
		d.live--
	}
}

// each calls f for the deliveries from first to last, inclusive, in order; f may remove its delivery.
func (d *deliveries) each(first, last uint32, f func(id uint32, e *delivery)) {
	if distance(first, last) < 0 {
		return
	}
	if len(d.old) > 0 {
		var ids []uint32
		for id := range d.old {
			if id-first <= last-first {
				ids = append(ids, id)
			}
		}
		slices.SortFunc(ids, func(a, b uint32) int { return int(distance(b, a)) })
		for _, id := range ids {
			f(id, d.old[id])
		}
	}
	base, n := d.base, int64(d.n) // f may change them
	from := int64(distance(base, first))
	to := from + int64(distance(first, last))
	for i := max(from, 0); i <= min(to, n-1); i++ {
		id := base + uint32(i)
		if e := d.get(id); e != nil {
			f(id, e)
		}
	}
}

// all calls f for all deliveries; f must not add or remove any.
func (d *deliveries) all(f func(id uint32, e *delivery)) {
	for id, e := range d.old {
		f(id, e)
	}
	for i := range d.n {
		id := d.base + uint32(i)
		if e := &d.ring[id&uint32(len(d.ring)-1)]; e.link != nil {
			f(id, e)
		}
	}
}

func (d *deliveries) removeLink(l *Link) {
	for id, e := range d.old {
		if e.link == l {
			d.remove(id)
		}
	}
	d.each(d.base, d.base+uint32(d.n)-1, func(id uint32, e *delivery) {
		if e.link == l {
			d.remove(id)
		}
	})
}

// distance returns the distance from a to b, which is negative if b is before a. Transfer and delivery numbers are
// serial numbers (RFC 1982): they wrap around, and the shorter distance determines the order.
func distance(a, b uint32) int32 { return int32(b - a) }
