// SPDX-License-Identifier: Apache-2.0

package failover

// This file gives the role back to the preferred node, some time after that is in sync again.

// failBack begins an ordinary hand-over to the preferred standby when it has been in sync for the delay without
// interruption. Called while this node is active.
func (m *machine) failBack() {
	a := &m.act
	switch {
	case !m.standbyIsPreferred() || m.hand.phase != handNone:
		a.giveAt = never
	case a.giveAt == never:
		a.giveAt = m.now + m.set.FailbackDelay
	case m.now < a.giveAt:
	case m.cannotHandOver() != "":
		a.giveAt = m.now + m.set.FailbackDelay // whatever it is, the pair is not as quiet as it should be
	default:
		a.giveAt = never
		m.beginHandOver("")
		m.hand.failback = true
	}
}

// standbyIsPreferred tells whether the standby is in sync and should be active instead of this node, and nothing speaks
// against it. When something does, for a moment, the delay begins anew after it; as it does with each term, so that the
// roles of a pair that flaps do not change more often for it.
func (s *State) standbyIsPreferred() bool {
	other, ok := s.rec.Other(s.self.ID)
	if !ok || s.set.Preferred || s.set.FailbackDelay <= 0 || !s.act.ready || s.absent() {
		return false
	}
	if s.rec.Paused != nil || s.rec.Switchover != nil || s.occupied != "" || len(s.rec.InSync) < s.rec.MinInSync {
		return false
	}
	n, ok := describeNode(s.rec, s.live, other.Node)
	return ok && n.Preferred
}
