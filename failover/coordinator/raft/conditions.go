// SPDX-License-Identifier: Apache-2.0

package raft

import (
	"fmt"
	"slices"
	"strings"

	"github.com/lockstep-mq/lockstep/failover"
)

func (v *Voter) currentConditions() []failover.Condition {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.conditions
}

// setConditions stores the conditions. If they are unchanged, it keeps the previous slice.
func (v *Voter) setConditions(now []failover.Condition) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if !slices.Equal(v.conditions, now) {
		v.conditions = now
	}
}

// replaceCommand returns the command that replaces a voter with a new one at the given address, with this voter's TLS
// files.
func (v *Voter) replaceCommand(id, address string) string {
	text := "lockstep pair replace " + id + " " + address
	if t := v.opts.TLS; t != nil && t.CA != "" {
		text += fmt.Sprintf(" --voters %s --raft-ca %s --raft-cert %s --raft-key %s", strings.Join(v.opts.Voters, ","),
			t.CA, t.Cert, t.Key)
	}
	return text
}

// evaluateConditions returns the conditions of all voters. The texts are stable.
func (v *Voter) evaluateConditions(own Status, known map[string]hello, silent map[string]silence) []failover.Condition {
	var out []failover.Condition
	add := func(kind, format string, args ...any) {
		out = append(out, failover.Condition{Kind: kind, Details: fmt.Sprintf(format, args...)})
	}
	if own.Fenced == FencedRolledBack {
		add(failover.ConditionVoterRolledBack, "%s", own.Problem)
	}
	if m, ok := predecessor(own, known); ok {
		add(failover.ConditionVoterWiped, "cluster lists the voter at %s with the ID %s, but its ID is %s: %s",
			m.Address, m.ID, own.ID, v.replaceCommand(m.ID, m.Address))
	}
	for _, m := range own.Voters {
		h, responded := known[m.Address]
		silentPeer, isSilent := silent[m.Address]
		switch {
		case m.ID == own.ID:
			switch {
			case v.diskStalled():
				add(failover.ConditionVoterBehind, "disk of the local voter (%s) does not respond", m.Address)
			case own.Fenced == "" && lagsPeers(own, known):
				add(failover.ConditionVoterBehind, "log entries of other voters are missing on the local voter (%s)",
					m.Address)
			}
		case !responded && isSilent:
			n := failover.Condition{
				Kind:    failover.ConditionVoterMissing,
				Details: fmt.Sprintf("%s's voter at %s does not respond", m.Kind, m.Address), Since: silentPeer.since,
			}
			if silentPeer.cause != "" {
				n.Details += ": " + silentPeer.cause
			}
			out = append(out, n)
		case !responded:
		case h.Status.ID != m.ID:
			add(failover.ConditionVoterWiped, "cluster lists the voter at %s with the ID %s, but its ID is %s: %s",
				m.Address, m.ID, h.Status.ID, v.replaceCommand(m.ID, m.Address))
		case h.Status.Fenced == FencedRolledBack:
			add(failover.ConditionVoterRolledBack, "disk of the voter at %s was restored from an older copy: stop it, "+
				"move its raft directory away (on a node: only 'raft' in the data directory), restart it, and run: %s",
				m.Address, v.replaceCommand(m.ID, m.Address))
		case h.Stalled:
			add(failover.ConditionVoterBehind, "disk of the voter at %s does not respond", m.Address)
		case h.Status.LastIndex+snapshotSlack < own.LastIndex:
			add(failover.ConditionVoterBehind, "log entries are missing on the voter at %s", m.Address)
		}
	}
	return out
}

func predecessor(own Status, known map[string]hello) (Member, bool) {
	for _, h := range known {
		if !h.Status.Member {
			continue
		}
		for _, m := range h.Status.Voters {
			if m.Address == own.Address && m.ID != own.ID {
				return m, true
			}
		}
	}
	return Member{}, false
}

func lagsPeers(own Status, known map[string]hello) bool {
	for _, h := range known {
		if h.Status.Member && lists(own, h.Status.ID) && own.LastIndex+snapshotSlack < h.Status.LastIndex {
			return true
		}
	}
	return false
}
