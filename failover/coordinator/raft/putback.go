// SPDX-License-Identifier: Apache-2.0

package raft

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	hraft "github.com/hashicorp/raft"
	"go.uber.org/zap"
)

// errConsulting is returned to a connecting voter while this one is waiting for the hellos of the others.
var errConsulting = errors.New("this voter has just started, and asks the others whether its disk is what it was")

// fillHandshake sets this voter's disk state, and its knowledge of the receiver.
func (v *Voter) fillHandshake(g *handshake) error {
	have, err := v.disk.state()
	if err != nil {
		return err
	}
	seen, err := v.seen.of(g.To)
	if err != nil {
		return err
	}
	if !v.opts.older {
		g.Have, g.Seen = &have, &seen
	}
	return nil
}

// checkHandshake compares the disk states of two voters with their knowledge of each other, before they exchange
// messages. This covers a voter that no other voter could warn when it started.
func (v *Voter) checkHandshake(g handshake) error {
	if g.Seen != nil {
		have, err := v.disk.state()
		if err != nil {
			return err
		}
		if missing := g.Seen.lacks(have); missing != "" {
			v.mu.Lock()
			v.suspect = missing
			v.mu.Unlock()
			v.pollNow()
			return fmt.Errorf("the disk of this voter was put back: %s", missing)
		}
	}
	if g.Have != nil {
		seen, err := v.seen.of(g.From)
		if err != nil {
			return err
		}
		if missing := seen.lacks(*g.Have); missing != "" {
			return fmt.Errorf("the disk of the voter that connects was put back: %s", missing)
		}
	}
	return nil
}

// pollNow triggers a poll of the others.
func (v *Voter) pollNow() {
	select {
	case v.look <- struct{}{}:
	default:
	}
}

// considerPutBack reports whether this voter's disk is older than others know it to be, and fences the voter in that
// case.
func (v *Voter) considerPutBack(known map[string]hello) bool {
	v.mu.Lock()
	missing, fenced := v.suspect, v.fenced
	v.mu.Unlock()
	if fenced != "" {
		return true
	}
	have, err := v.disk.state()
	if errors.Is(err, errDiskStalled) {
		return false // notices report it
	}
	if err != nil {
		v.log.Error("this voter's disk cannot be read", zap.Error(err))
		return false
	}
	for _, h := range known {
		if missing == "" {
			missing = h.Seen[v.disk.id].lacks(have)
		}
	}
	if missing == "" {
		return false
	}
	// The voters that know it may not be running at the next start.
	if err := v.disk.notePutBack(missing); err != nil {
		v.log.Error("it could not be noted that this voter's disk was put back", zap.Error(err))
	}
	text := fmt.Sprintf("the disk of this voter (%s) was put back to an older state: %s. Its votes and its log count "+
		"no more, and it takes no part until it is replaced: stop it, move its directory %s away, start it anew, "+
		"and: %s",
		v.disk.id, missing, v.opts.Dir, v.replaceCommand(v.disk.id, v.opts.Advertise))
	v.log.Error("this voter takes no part any more", zap.String("cause", text))
	v.fence(FencedPutBack, text)
	return true
}

// othersPutBack describes other members with a restored disk; empty if none.
func (v *Voter) othersPutBack(own Status, known map[string]hello) string {
	var back []Member
	for _, m := range own.Voters {
		if h, ok := known[m.Address]; ok && h.Status.ID == m.ID && h.Status.Fenced == FencedPutBack {
			back = append(back, m)
		}
	}
	switch {
	case len(back) == 0:
		return ""
	case len(back) < (len(own.Voters)+1)/2:
		m := back[0]
		return fmt.Sprintf("the disk of the voter at %s was put back to an older state, and it takes no part: stop "+
			"it, move its raft directory away (of a node: 'raft' in the data directory, and nothing else of that), "+
			"start it anew, and: %s", m.Address, v.replaceCommand(m.ID, m.Address))
	default:
		var at []string
		for _, m := range back {
			at = append(at, m.Address)
		}
		return fmt.Sprintf("the disks of the voters at %s were put back to an older state, and without a majority no "+
			"role can change. What this voter (%s) has is newer: make it the only one (lockstep pair "+
			"recover-quorum), and add the others anew",
			strings.Join(at, " and "), own.Address)
	}
}

// endConsulting ends the start phase in which this voter only polls. It has enough hellos when each other member has
// responded or, if one of them does not respond, one has and a timeout has passed. One is required, because alone the
// voter could not do anything. A voter with better knowledge that did not respond rejects this one when they connect
// (see checkHandshake).
func (v *Voter) endConsulting(known map[string]hello) {
	members := v.otherMembers()
	v.mu.Lock()
	waits := v.consulting && v.fenced == "" && v.heardEnough(members, known, time.Now())
	v.mu.Unlock()
	if !waits {
		return
	}
	c := raftConfig(v.disk.id, v.opts.ElectionTimeout, v.rlog)
	err := v.raft.ReloadConfig(hraft.ReloadableConfig{
		TrailingLogs: c.TrailingLogs, SnapshotInterval: c.SnapshotInterval, SnapshotThreshold: c.SnapshotThreshold,
		HeartbeatTimeout: c.HeartbeatTimeout, ElectionTimeout: c.ElectionTimeout,
	})
	if err != nil {
		v.log.Error("this voter cannot stand for elections", zap.Error(err))
		return
	}
	v.mu.Lock()
	v.consulting = false // only now: a leader could ask it to stand for election
	v.mu.Unlock()
}

// heardEnough reports whether all other members have responded, or one of them and the others had enough time. That
// time counts from the beginning of the round in which the first one responded, so a silent one is waited for only
// once, for the duration of a request. mu is held.
func (v *Voter) heardEnough(members []string, known map[string]hello, now time.Time) bool {
	heard := 0
	for _, address := range members {
		if _, ok := known[address]; ok {
			heard++
			if v.answered.IsZero() {
				v.answered = v.heard[address].asked
			}
		}
	}
	return heard == len(members) || heard > 0 && now.Sub(v.answered) >= v.opts.RequestTimeout
}

// otherMembers returns the addresses of the cluster's other members; before it is formed, those of the configuration.
func (v *Voter) otherMembers() []string {
	servers := v.servers()
	if len(servers) == 0 {
		return slices.DeleteFunc(slices.Clone(v.opts.Voters), func(a string) bool { return a == v.opts.Advertise })
	}
	var out []string
	for _, s := range servers {
		if string(s.ID) != v.disk.id {
			out = append(out, string(s.Address))
		}
	}
	return out
}

// gossip records another voter's progress and its knowledge of the others.
func (v *Voter) gossip(h hello) {
	err := v.seen.saw(h.Status.ID, sighting{Term: h.Status.Term}, lazily)
	for id, s := range h.Seen {
		err = errors.Join(err, v.seen.saw(id, s, lazily))
	}
	if err = errors.Join(err, v.seen.flush(v.servers())); err != nil {
		v.log.Warn("what is known of the other voters", zap.Error(err))
	}
}
