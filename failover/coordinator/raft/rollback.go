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

var errVerifying = errors.New("voter is starting and checks with its peers whether its disk was rolled back")

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

// checkHandshake compares the disk states of two voters with their known progress. It detects rollbacks that no hello
// revealed when the voter started.
func (v *Voter) checkHandshake(g handshake) error {
	if g.Seen != nil {
		have, err := v.disk.state()
		if err != nil {
			return err
		}
		if missing := g.Seen.missing(have); missing != "" {
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
		if missing := seen.missing(*g.Have); missing != "" {
			return fmt.Errorf("disk of the connecting voter was rolled back: %s", missing)
		}
	}
	return nil
}

func (v *Voter) pollNow() {
	select {
	case v.pollRequested <- struct{}{}:
	default:
	}
}

// checkRollback fences this voter if its disk is below its known progress. It reports whether the voter is fenced.
func (v *Voter) checkRollback(known map[string]hello) bool {
	v.mu.Lock()
	missing, fenced := v.suspectedLoss, v.fenced
	v.mu.Unlock()
	if fenced != "" {
		return true
	}
	have, err := v.disk.state()
	if errors.Is(err, errDiskStalled) {
		return false // reported as a condition
	}
	if err != nil {
		v.log.Error("cannot read the raft state", zap.Error(err))
		return false
	}
	for _, h := range known {
		if missing == "" {
			missing = h.Seen[v.disk.id].missing(have)
		}
	}
	if missing == "" {
		return false
	}
	// At the next start, the voters that detected the rollback may not be running.
	if err := v.disk.recordRollback(missing); err != nil {
		v.log.Error("cannot persist the rollback of this voter", zap.Error(err))
	}
	text := fmt.Sprintf("disk of this voter (%s) was restored from an older copy: %s. The voter is fenced until it is "+
		"replaced: stop it, move its directory %s away, restart it, and run: %s",
		v.disk.id, missing, v.opts.Dir, v.replaceCommand(v.disk.id, v.opts.Advertise))
	v.log.Error("voter is fenced", zap.String("cause", text))
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
		return fmt.Sprintf("disk of the voter at %s was restored from an older copy: stop it, move its raft "+
			"directory away (on a node: only 'raft' in the data directory), restart it, and run: %s", m.Address,
			v.replaceCommand(m.ID, m.Address))
	default:
		var at []string
		for _, m := range back {
			at = append(at, m.Address)
		}
		return fmt.Sprintf("disks of the voters at %s were restored from older copies, and role changes are impossible "+
			"without a majority. This voter (%s) has newer data: make it the only member (lockstep pair "+
			"recover-quorum), and add the others again",
			strings.Join(at, " and "), own.Address)
	}
}

// endVerification ends the start phase, in which this voter only polls. If the cluster has other members, it requires
// at least one hello.
func (v *Voter) endVerification(known map[string]hello) {
	members := v.otherMembers()
	v.mu.Lock()
	done := v.verifying && v.fenced == "" && v.hasEnoughHellos(members, known, time.Now())
	v.mu.Unlock()
	if !done {
		return
	}
	c := raftConfig(v.disk.id, v.opts.ElectionTimeout, v.rlog)
	err := v.raft.ReloadConfig(hraft.ReloadableConfig{
		TrailingLogs: c.TrailingLogs, SnapshotInterval: c.SnapshotInterval, SnapshotThreshold: c.SnapshotThreshold,
		HeartbeatTimeout: c.HeartbeatTimeout, ElectionTimeout: c.ElectionTimeout,
	})
	if err != nil {
		v.log.Error("cannot enable elections", zap.Error(err))
		return
	}
	v.mu.Lock()
	v.verifying = false // only now, because a leader could request an election
	v.mu.Unlock()
}

// hasEnoughHellos reports whether all other members have responded, or at least one has responded and RequestTimeout
// has passed since the first poll with a response. It records the time of this poll. mu is held.
func (v *Voter) hasEnoughHellos(members []string, known map[string]hello, now time.Time) bool {
	responses := 0
	for _, address := range members {
		if _, ok := known[address]; ok {
			responses++
			if v.firstResponse.IsZero() {
				v.firstResponse = v.hellos[address].polled
			}
		}
	}
	return responses == len(members) || responses > 0 && now.Sub(v.firstResponse) >= v.opts.RequestTimeout
}

// otherMembers returns the addresses of the cluster's other members; before it is formed, the configured addresses.
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
	err := v.seen.record(h.Status.ID, peerProgress{Term: h.Status.Term}, urgencyLow)
	for id, s := range h.Seen {
		err = errors.Join(err, v.seen.record(id, s, urgencyLow))
	}
	if err = errors.Join(err, v.seen.flush(v.servers())); err != nil {
		v.log.Warn("cannot persist peer progress", zap.Error(err))
	}
}
