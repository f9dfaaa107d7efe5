// SPDX-License-Identifier: Apache-2.0

package txn

import (
	"encoding/binary"
	"fmt"
	"time"

	"github.com/google/uuid"
)

// FleetAction is the kind of a FleetChange.
type FleetAction uint8

// Fleet actions. They are stored in the log and never change their meaning.
const (
	// FleetJoin makes the pair a member of a fleet.
	FleetJoin FleetAction = 1
	// FleetLeave ends the membership of the pair.
	FleetLeave FleetAction = 2
)

var fleetActions = [...]string{FleetJoin: "join", FleetLeave: "leave"} //nolint:gochecknoglobals // a table

// String returns the name of the action, as shown by `store dump-log`.
func (a FleetAction) String() string {
	if int(a) < len(fleetActions) && fleetActions[a] != "" {
		return fleetActions[a]
	}
	return "unknown"
}

// FleetChange is the content of an OpFleet. For FleetLeave, only Action is set.
type FleetChange struct {
	Action FleetAction
	// ID identifies the fleet. It is not zero.
	ID uuid.UUID
	// Pair is the name of the pair in the fleet. CheckName accepts it.
	Pair string
	// Epoch, at least 1, is the ownership epoch of all queues that the pair has when it joins. It must be above all
	// epochs in the log of the pair.
	Epoch uint64
}

// Fleet adds an operation that makes the pair join or leave a fleet. If c is invalid, the error of Finish wraps
// ErrMalformed, ErrInvalidName or ErrNewerVersion.
func (b *Builder) Fleet(c FleetChange) {
	if err := c.check(); err != nil {
		b.fail(err)
	}
	b.begin(OpFleet)
	b.buf = append(b.buf, byte(c.Action))
	if c.Action == FleetJoin {
		b.buf = appendString(append(b.buf, c.ID[:]...), c.Pair)
		b.buf = binary.AppendUvarint(b.buf, c.Epoch)
	}
	b.end()
}

// OwnQueue adds an operation with the ownership epoch of a queue, at least 1. Directly followed by CreateQueue or
// CreateQueueWith of the same name, it is the epoch of the new queue, and the result contains only the creation. As the
// only operation of a transaction, it raises the epoch of an existing queue.
func (b *Builder) OwnQueue(name string, epoch uint64) {
	if err := CheckQueueName(name); err != nil {
		b.fail(err)
	}
	if epoch == 0 {
		b.fail(errNoEpoch())
	}
	if b.ops == 0 {
		b.owned = name
	}
	b.begin(OpOwn)
	b.buf = binary.AppendUvarint(appendString(b.buf, name), epoch)
	b.end()
}

// Barrier returns the payload of a transaction that a pair always rejects.
func Barrier(t time.Time) ([]byte, error) {
	// A pair always rejects it: the queue is missing, the pair is not a member of a fleet, or the epoch of the queue is
	// already at least 1.
	return Build(t, func(b *Builder) { b.OwnQueue("fleet", 1) })
}

func errNoEpoch() error { return fmt.Errorf("%w: ownership epoch of 0", ErrMalformed) }

func (c *FleetChange) check() error {
	switch {
	case c.Action != FleetJoin && c.Action != FleetLeave:
		return fmt.Errorf("%w: fleet action %d", ErrNewerVersion, uint8(c.Action))
	case c.Action == FleetLeave:
		return nil
	case c.ID == uuid.Nil:
		return fmt.Errorf("%w: fleet with ID 0", ErrMalformed)
	case c.Epoch == 0:
		return errNoEpoch()
	}
	return CheckName(c.Pair)
}

func (o *Op) decodeFleet(d *decoder) {
	if o.Code == OpOwn {
		if o.Name, o.Number = d.queueName(), d.uvarint(); d.err == nil && o.Number == 0 {
			d.err = errNoEpoch()
		}
		return
	}
	o.Raw = d.b
	c := d.fleetChange()
	if d.err == nil {
		d.err = c.check()
	}
}

func (d *decoder) fleetChange() (c FleetChange) {
	c.Action = FleetAction(d.u8())
	if c.Action != FleetJoin {
		return c
	}
	if len(d.b) < len(c.ID) {
		d.fail("truncated")
		return c
	}
	d.b = d.b[copy(c.ID[:], d.b):]
	c.Pair, c.Epoch = string(d.bytes(MaxNameBytes)), d.uvarint()
	return c
}

// FleetChange returns the change of an OpFleet, which Next has verified. For other operations it is zero.
func (o *Op) FleetChange() (c FleetChange) {
	if o.Code == OpFleet {
		d := decoder{b: o.Raw}
		c = d.fleetChange()
	}
	return c
}
