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

var errVerifying = errors.New("voter has just started and is checking with its peers that its disk was not rolled back")

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

// checkHandshake compares the disk states of two voters with their knowledge of each other, for a voter that no other
// voter could warn when it started.
func (v *Voter) checkHandshake(g handshake) error {
	if g.Seen != nil {
		have, err := v.disk.state()
		if err != nil {
			return err
		}
		if missing := g.Seen.lacks(have); missing != "" {
			v.mu.Lock()
			v.suspectedLoss = missing
			v.mu.Unlock()
			v.pollNow()
			return fmt.Errorf("disk of this voter was rolled back: %s", missing)
		}
	}
	if g.Have != nil {
		seen, err := v.seen.of(g.From)
		if err != nil {
			return err
		}
		if missing := seen.lacks(*g.Have); missing != "" {
			return fmt.Errorf("disk of the connecting voter was rolled back: %s", missing)
		}
	}
	return nil
}

func (v *Voter) pollNow() {
	select {
	case v.look <- struct{}{}:
	default:
	}
}

// checkRollback fences this voter if others know it to have had a newer disk. It reports whether the voter is fenced.
func (v *Voter) checkRollback(known map[string]hello) bool {
	v.mu.Lock()
	missing, fenced := v.suspectedLoss, v.fenced
	v.mu.Unlock()
	if fenced != "" {
		return true
	}
	have, err := v.disk.state()
	if errors.Is(err, errDiskStalled) {
		return false // conditions report it
	}
	if err != nil {
		v.log.Error("cannot read the disk of this voter", zap.Error(err))
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
	if err := v.disk.recordRollback(missing); err != nil {
		v.log.Error("cannot record that the disk of this voter was rolled back", zap.Error(err))
	}
	text := fmt.Sprintf("disk of this voter (%s) was restored from an older copy: %s. Its votes and its log no "+
		"longer count, "+
		"and it takes no part until it is replaced: stop it, move its directory %s away, restart it, "+
		"and: %s",
		v.disk.id, missing, v.opts.Dir, v.replaceCommand(v.disk.id, v.opts.Advertise))
	v.log.Error("voter no longer takes part", zap.String("cause", text))
	v.fence(FencedRolledBack, text)
	return true
}

func (v *Voter) rolledBackPeers(own Status, known map[string]hello) string {
	var back []Member
	for _, m := range own.Voters {
		if h, ok := known[m.Address]; ok && h.Status.ID == m.ID && h.Status.Fenced == FencedRolledBack {
			back = append(back, m)
		}
	}
	switch {
	case len(back) == 0:
		return ""
	case len(back) < (len(own.Voters)+1)/2:
		m := back[0]
		return fmt.Sprintf("disk of the voter at %s was restored from an older copy, and it takes no part: stop "+
			"it, move its raft directory away (of a node: only 'raft' in the data directory), "+
			"restart it, and: %s", m.Address, v.replaceCommand(m.ID, m.Address))
	default:
		var at []string
		for _, m := range back {
			at = append(at, m.Address)
		}
		return fmt.Sprintf("disks of the voters at %s were restored from older copies, and without a majority role changes "+
			"stop. This voter (%s) has newer data: make it the only one (lockstep pair "+
			"recover-quorum), and add the others again",
			strings.Join(at, " and "), own.Address)
	}
}

// endVerification ends the start phase in which this voter only polls. One hello is required, because alone the voter
// could not do anything. A voter with better knowledge that did not respond rejects this one when they connect (see
// checkHandshake).
func (v *Voter) endVerification(known map[string]hello) {
	members := v.otherMembers()
	v.mu.Lock()
	waits := v.verifying && v.fenced == "" && v.hasEnoughHellos(members, known, time.Now())
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
		v.log.Error("voter cannot stand for election", zap.Error(err))
		return
	}
	v.mu.Lock()
	v.verifying = false // only now: a leader could ask it to stand for election
	v.mu.Unlock()
}

// hasEnoughHellos reports whether all other members have responded, or one of them, and the others had a request's time
// since the round in which the first one responded. mu is held.
func (v *Voter) hasEnoughHellos(members []string, known map[string]hello, now time.Time) bool {
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

func (v *Voter) recordProgress(h hello) {
	err := v.seen.saw(h.Status.ID, peerProgress{Term: h.Status.Term}, urgencyLow)
	for id, s := range h.Seen {
		err = errors.Join(err, v.seen.saw(id, s, urgencyLow))
	}
	if err = errors.Join(err, v.seen.flush(v.servers())); err != nil {
		v.log.Warn("recorded peer progress", zap.Error(err))
	}
}
