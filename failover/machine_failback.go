// SPDX-License-Identifier: Apache-2.0

package failover

// failBack starts a handover to the preferred standby when it has been in sync for the delay without interruption.
func (m *machine) failBack() {
	a := &m.act
	switch {
	case !m.standbyIsPreferred() || m.hand.phase != handoverNone:
		a.transferAt = never
	case a.transferAt == never:
		a.transferAt = m.now + m.set.FailbackDelay
	case m.now < a.transferAt:
	case m.switchoverBlocker() != "":
		a.transferAt = m.now + m.set.FailbackDelay // the pair is not stable enough for a handover
	default:
		a.transferAt = never
		m.beginHandOver("")
		m.hand.failback = true
	}
}

// standbyIsPreferred reports whether the standby is in sync, preferred over this node, and may get the role. The delay
// restarts whenever this was false, so an unstable pair does not change roles more often.
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
