// SPDX-License-Identifier: Apache-2.0

package failover

import (
	"cmp"
	"fmt"
	"slices"
)

// Operators act on these texts. The texts suggest a forced failover only as a last resort: it can lose messages.

// waiting returns a description of the event that a node waits for while it is neither in sync nor connected.
func (s *State) waiting() string {
	if gone, ok := s.replaced(); ok {
		return s.replacedReason(gone)
	}
	first, second, two := s.foreignPair()
	_, activeLives := Observation{Live: s.live}.LiveNode(s.rec.Active)
	replacement, replaced := s.nodeAtActiveAddress()
	switch {
	case two && s.isLive(first.ID) && s.isLive(second.ID):
		return fmt.Sprintf("the pair already has two nodes, %s and %s, and this is a third one: stop it, or set another "+
			"coordinator.etcd.prefix. To replace one of the two, stop that node first", describeShort(first),
			describeShort(second))
	case two:
		return fmt.Sprintf("the nodes in sync are %s and %s: start one of them. This node joins when the other one is "+
			"removed from the in-sync set", describeShort(first), describeShort(second))
	case s.follow.cause == LostBehind:
		return behindReason
	case s.follow.cause == LostNoSpace:
		return "replication resumes automatically when the disk has space again (disk.low-watermark)"
	case activeLives && s.follow.cause == LostRejected:
		return "the active is running but rejects this node: check the logs of both nodes. This node retries automatically"
	case activeLives:
		return "the active is running according to the coordinator: check the network between the two nodes. A forced " +
			"failover is not needed"
	case replaced:
		return fmt.Sprintf("another node, %s, runs at the active's address: the active's data directory was wiped or "+
			"replaced, and no other node is in sync. Restore it. If it is permanently lost, stop the new node, and check with "+
			"lockstep failover --dry-run which records a failover to this node would lose", describeShort(replacement))
	default:
		return "only the active has all records: start it. If it is permanently lost, check with lockstep failover " +
			"--dry-run which records a failover to this node would lose"
	}
}

func (s *State) replacedReason(gone NodeInfo) string {
	what := fmt.Sprintf("the cluster record lists another node, %s, in sync at this node's address: its data directory "+
		"was wiped or replaced", gone.ID)
	if m, ok := s.rec.Other(gone.ID); ok {
		other, _ := describeNode(s.rec, s.live, m.Node)
		other.ID = m.Node
		return what + fmt.Sprintf(". Node %s also has all records: start it, and this node joins automatically",
			describeShort(other))
	}
	what += ", and no other node was in sync. Restore that directory"
	known := slices.Clone(s.rec.Nodes)
	for _, l := range s.live {
		known = append(known, l.Node)
	}
	for _, n := range known {
		if n.ID != gone.ID && n.ID != s.self.ID {
			return what + fmt.Sprintf(". If it is permanently lost, stop this node, and continue with the records of node %s: "+
				"run lockstep failover there, never on this node: its store is empty", describeShort(n))
		}
	}
	return what + ", or restore a backup"
}

func (s *State) foreignPair() (first, second NodeInfo, ok bool) {
	if _, listed := s.rec.Member(s.self.ID); listed || len(s.rec.InSync) < 2 {
		return first, second, false
	}
	named := func(m Member) NodeInfo {
		n, _ := describeNode(s.rec, s.live, m.Node)
		n.ID = m.Node
		return n
	}
	return named(s.rec.InSync[0]), named(s.rec.InSync[1]), true
}

func (s *State) replaced() (NodeInfo, bool) {
	for _, m := range s.rec.InSync {
		n, ok := s.rec.Node(m.Node)
		if ok && n.ID != s.self.ID && n.Address == s.self.Address && !s.isLive(n.ID) {
			return n, true
		}
	}
	return NodeInfo{}, false
}

func (s *State) nodeAtActiveAddress() (NodeInfo, bool) {
	active, ok := s.rec.Node(s.rec.Active)
	if !ok {
		return NodeInfo{}, false
	}
	l, ok := find(s.live, func(l Live) bool {
		return l.Node.ID != active.ID && l.Node.ID != s.self.ID && l.Node.Address == active.Address
	})
	return l.Node, ok
}

// Third returns a node that announces itself as a member of this pair while two others are in sync. The cause may be
// an incorrect key prefix. It ignores a node that replaced one of the two at the same address.
func (s Status) Third() (NodeInfo, bool) {
	if s.Record == nil {
		return NodeInfo{}, false
	}
	return third(*s.Record, s.Live)
}

func third(rec Record, live []Live) (NodeInfo, bool) {
	if len(rec.InSync) < 2 {
		return NodeInfo{}, false
	}
	l, ok := find(live, func(l Live) bool {
		return !slices.ContainsFunc(rec.InSync, func(m Member) bool {
			n, _ := describeNode(rec, live, m.Node)
			return m.Node == l.Node.ID || n.Address == l.Node.Address
		})
	})
	return l.Node, ok
}

func (s *State) thirdReason() string {
	n, ok := third(s.rec, s.live)
	if !ok {
		return ""
	}
	return fmt.Sprintf("a third node, %s, announces itself in this pair and is rejected: stop it, or set another "+
		"coordinator.etcd.prefix", describeShort(n))
}

func describeShort(n NodeInfo) string {
	name := cmp.Or(n.Name, n.ID.String())
	if n.Address == "" {
		return name
	}
	return name + " (" + n.Address + ")"
}
