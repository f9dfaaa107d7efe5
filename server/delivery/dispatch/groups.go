// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"hash/maphash"
	"slices"

	"github.com/lockstep-mq/lockstep/store/txn"
)

const (
	// maxGroups limits the number of groups of a subscription for which a consumer is recorded. Beyond that number,
	// groups without a message in flight are evicted. The next message of an evicted group may be delivered to another
	// consumer.
	maxGroups = 1 << 18
	// maxParked limits the number of messages parked behind other messages of their groups. Beyond that number, no new
	// messages are read.
	maxParked = 1 << 17
)

// groups keeps the messages of each group in order. At most one message of a group is out at a time: from its first
// delivery or deferral until it is acknowledged, rejected, dead-lettered or expired, regardless of redeliveries. The
// sequences of later messages of the group are parked, and these messages are read again one by one. The consumer of
// the last message owns the group while it is attached, is not idle, and accepts the group's messages. Otherwise, of
// the consumers that can accept the message, the one with the fewest groups becomes the owner.
//
// Groups are identified by a hash of their names. Groups with the same hash are treated as one group.
type groups struct {
	seed   maphash.Seed
	byHash map[uint64]*group // nil before the first group
	outs   map[uint64]*group // by the sequence of the message that is out
	parked int
}

type group struct {
	hash   uint64
	owner  *Consumer       // consumer of the last message; may have left
	out    uint64          // sequence of the message that is out; 0 if none is out
	parked []parkedMessage // later messages of the group, in delivery order
}

// parkedMessage is a sequence with its lane (priority) in the upper bits. The highest lane is encoded as 0.
type parkedMessage uint64

const laneShift = 58

func (p parkedMessage) sequence() uint64 { return uint64(p) & (1<<laneShift - 1) }
func (p parkedMessage) lane() uint8      { return uint8(lanes - 1 - int(p>>laneShift)) }

func (s *groups) any() bool { return len(s.outs) > 0 }

func (s *groups) of(m *Message) *group {
	name := txn.RecordAttribute(m.Record, txn.AttributeGroup)
	if name == nil {
		return nil
	}
	if s.byHash == nil {
		s.seed = maphash.MakeSeed()
		s.byHash, s.outs = make(map[uint64]*group), make(map[uint64]*group)
	}
	hash := maphash.Bytes(s.seed, name)
	g := s.byHash[hash]
	if g == nil {
		s.evict()
		g = &group{hash: hash}
		s.byHash[hash] = g
	}
	return g
}

// evict removes some of the groups without a message that is out, if the number of groups has reached maxGroups.
func (s *groups) evict() {
	if len(s.byHash) < maxGroups {
		return
	}
	const look = 64
	n := 0
	for hash, g := range s.byHash {
		if g.out == 0 {
			g.leave()
			delete(s.byHash, hash)
		}
		if n++; n == look {
			return
		}
	}
}

func (g *group) leave() {
	if g.owner != nil {
		g.owner.groups--
		g.owner = nil
	}
}

func (s *groups) hold(g *group, sequence uint64) {
	g.out = sequence
	s.outs[sequence] = g
}

func (s *groups) deliver(g *group, sequence uint64, c *Consumer) {
	s.hold(g, sequence)
	if g.owner != c {
		g.leave()
		g.owner = c
		c.groups++
	}
}

func (s *groups) park(g *group, lane uint8, sequence uint64) {
	p := parkedMessage(lanes-1-int(lane))<<laneShift | parkedMessage(sequence)
	at, there := slices.BinarySearch(g.parked, p)
	if there {
		return
	}
	g.parked = slices.Insert(g.parked, at, p)
	s.parked++
}

// done records that a message is no longer out. It returns the next parked message of the group, if any. That message
// is no longer parked, but out.
func (s *groups) done(sequence uint64) (next uint64, lane uint8, more bool) {
	g := s.outs[sequence]
	if g == nil {
		return 0, 0, false
	}
	delete(s.outs, sequence)
	g.out = 0
	if len(g.parked) == 0 {
		return 0, 0, false
	}
	first := g.parked[0]
	if g.parked = g.parked[1:]; len(g.parked) == 0 {
		g.parked = nil
	}
	s.parked--
	s.hold(g, first.sequence())
	return first.sequence(), first.lane(), true
}

func (s *groups) each(r Range, fn func(sequence uint64)) {
	var list []uint64
	inRange(s.outs, r, func(sequence uint64, _ *group) { list = append(list, sequence) })
	slices.Sort(list)
	for _, sequence := range list {
		fn(sequence)
	}
}
