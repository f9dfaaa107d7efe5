// SPDX-License-Identifier: Apache-2.0

package txn

import (
	"fmt"
)

// MaxPauseTextBytes is the maximum length of each text of a Pause.
const MaxPauseTextBytes = 1024

// Pause is the pause of a queue or of one of its subscriptions. The zero value means not paused.
type Pause struct {
	// Publish reports whether publishes and forwards to the queue are rejected with ErrQueuePaused. It is always false
	// for a subscription. Dead letters, other messages that the pair moves to the queue, and the messages of prepared
	// transactions that are committed are still added.
	Publish bool
	// Deliver reports whether delivery is paused. Messages in flight can be acknowledged.
	Deliver bool
	// TimeMS is the time of the pausing transaction, in milliseconds since 1970. It is not part of the encoding.
	TimeMS uint64
	// By is the name of the client that requested the pause. Reason is its explanation. Both have at most
	// MaxPauseTextBytes bytes and may be empty.
	By, Reason string
}

// Paused reports whether publishing or delivery is paused.
func (p *Pause) Paused() bool { return p.Publish || p.Deliver }

const (
	pausePublish = 1
	pauseDeliver = 2

	flagResume = 1 // of an OpPause
)

// AppendPause appends the encoding of p: flags u8 (1 = publish, 2 = deliver), and the two texts, each as length
// uvarint and bytes. A Pause that pauses nothing is encoded as a single 0.
func AppendPause(dst []byte, p Pause) []byte {
	if !p.Paused() {
		return append(dst, 0)
	}
	flags := byte(0)
	if p.Publish {
		flags = pausePublish
	}
	if p.Deliver {
		flags |= pauseDeliver
	}
	return appendString(appendString(append(dst, flags), p.By), p.Reason)
}

// DecodePause reads a pause from the front of b. The errors wrap ErrMalformed or ErrNewerVersion.
func DecodePause(b []byte) (p Pause, rest []byte, err error) {
	d := decoder{b: b}
	p = d.pause()
	return p, d.b, d.err
}

func (d *decoder) pause() (p Pause) {
	flags := d.u8()
	if d.err != nil || flags == 0 {
		return p
	}
	if flags&^(pausePublish|pauseDeliver) != 0 {
		d.err = fmt.Errorf("%w: pause flags %#x", ErrNewerVersion, flags)
		return p
	}
	p.Publish, p.Deliver = flags&pausePublish != 0, flags&pauseDeliver != 0
	p.By, p.Reason = string(d.bytes(MaxPauseTextBytes)), string(d.bytes(MaxPauseTextBytes))
	return p
}

// Pause adds an operation that pauses a queue, if sub is 0, or one of its subscriptions. It does not resume
// publishing or delivery that is already paused. TimeMS, By and Reason replace the values of an earlier pause.
func (b *Builder) Pause(queue uint64, sub uint32, p Pause) {
	if n := max(len(p.By), len(p.Reason)); n > MaxPauseTextBytes {
		b.fail(fmt.Errorf("%w: text of a pause has %d bytes, limit %d", ErrTooLarge, n, MaxPauseTextBytes))
	}
	if p.Publish && sub != 0 {
		b.fail(fmt.Errorf("%w: pause of publishing for a subscription", ErrMalformed))
	}
	b.pause(queue, sub, 0, p)
}

// Resume adds an operation that resumes publishing, delivery or both, for a queue if sub is 0, or for one of its
// subscriptions.
func (b *Builder) Resume(queue uint64, sub uint32, publish, deliver bool) {
	b.pause(queue, sub, flagResume, Pause{Publish: publish, Deliver: deliver})
}

func (b *Builder) pause(queue uint64, sub uint32, flags byte, p Pause) {
	if !p.Paused() {
		b.fail(fmt.Errorf("%w: pause without a direction", ErrMalformed))
	}
	b.begin(OpPause, queue, uint64(sub))
	b.buf = AppendPause(append(b.buf, flags), p)
	b.end()
}

func (o *Op) decodePause(d *decoder) {
	o.Queue, o.Sub = d.uvarint(), d.sub()
	o.Raw = d.b
	p, _ := d.pauseOp()
	if d.err == nil && (!p.Paused() || p.Publish && o.Sub != 0) {
		d.fail("pause without a direction, or of publishing for a subscription")
	}
}

func (d *decoder) pauseOp() (p Pause, resume bool) {
	flags := d.u8()
	if flags&^flagResume != 0 && d.err == nil {
		d.err = fmt.Errorf("%w: flags %#x of a pause", ErrNewerVersion, flags)
	}
	return d.pause(), flags&flagResume != 0
}

// Pause returns the pause of an OpPause, which Next has verified. If resume is true, Publish and Deliver are
// resumed instead.
func (o *Op) Pause() (p Pause, resume bool) {
	if o.Code == OpPause {
		d := decoder{b: o.Raw}
		p, resume = d.pauseOp()
	}
	return p, resume
}
