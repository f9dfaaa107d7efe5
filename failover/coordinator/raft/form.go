// SPDX-License-Identifier: Apache-2.0

package raft

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	hraft "github.com/hashicorp/raft"
	"go.uber.org/zap"
)

const (
	fastPollInterval = 100 * time.Millisecond
	slowPollInterval = time.Second
	// unreachableAfter is the time without a response after which a voter is reported as unreachable.
	unreachableAfter = 10 * time.Second
	// problemDelay is the time for which a problem must persist before it is logged.
	problemDelay = 2 * time.Second
	// adoptAfter is the number of election timeouts without a leader after which a member accepts a leader reported by
	// another voter.
	adoptAfter = 4
)

type hello struct {
	Status Status `json:"status"`
	// Empty reports whether the voter has no log entry and no snapshot.
	Empty           bool                    `json:"empty"`
	Configured      []string                `json:"configured"`
	ElectionTimeout time.Duration           `json:"election_timeout"`
	Stalled         bool                    `json:"stalled"`
	Seen            map[string]peerProgress `json:"seen,omitempty"`
	Features        []string                `json:"features,omitempty"`
}

// hello returns the voter's hello. If a stalled disk makes values unreadable, it omits them and sets Stalled.
func (v *Voter) hello() (hello, error) {
	h := hello{
		Status: v.Status(), Configured: v.opts.Voters, ElectionTimeout: v.opts.ElectionTimeout, Stalled: v.diskStalled(),
	}
	if !v.opts.older {
		h.Features = []string{featureMark}
	}
	var err error
	if h.Empty, err = v.disk.empty(); err == nil && !v.opts.older {
		h.Seen, err = v.seen.all()
	}
	if errors.Is(err, errDiskStalled) {
		h.Stalled = true
		return h, nil
	}
	return h, err
}

// pollOthers polls the other voters. Their hellos are used to form a cluster, to determine why this voter is not a
// member, and to check the health of the voters.
func (v *Voter) pollOthers(ctx context.Context) {
	for {
		v.checkRollback(nil)
		v.poll(ctx)
		if ctx.Err() != nil {
			return
		}
		v.evaluate()
		wait := slowPollInterval
		if v.leaders.Get().address == "" || v.leading.Load() != nil && v.opts.Kind == KindNode {
			wait = fastPollInterval
		}
		select {
		case <-ctx.Done():
			return
		case <-v.pollRequested:
		case <-time.After(wait):
		}
	}
}

func (v *Voter) poll(ctx context.Context) {
	began := time.Now()
	ctx, cancel := context.WithTimeout(ctx, v.opts.RequestTimeout)
	defer cancel()
	var wg sync.WaitGroup
	for _, address := range v.others() {
		wg.Go(func() {
			h, err := v.peers.at(address).hello(ctx)
			if err != nil {
				v.recordSilence(address, err)
				return
			}
			v.mu.Lock()
			_, known := v.hellos[address]
			v.hellos[address] = receivedHello{hello: h, polled: began, at: time.Now()}
			delete(v.silent, address)
			v.mu.Unlock()
			v.recordProgress(h)
			if !known {
				v.log.Info("voter is reachable", zap.String("address", address), zap.String("id", h.Status.ID))
			}
		})
	}
	wg.Wait()
}

// recordSilence records that a voter does not respond. It deletes the voter's last hello.
func (v *Voter) recordSilence(address string, err error) {
	v.mu.Lock()
	_, known := v.hellos[address]
	delete(v.hellos, address)
	silentPeer := v.silent[address]
	if silentPeer.since.IsZero() {
		silentPeer.since = time.Now()
	}
	silentPeer.cause = cause(err)
	v.silent[address] = silentPeer
	v.mu.Unlock()
	if known {
		v.log.Info("voter does not respond", zap.String("address", address), zap.Error(err))
	} else {
		v.log.Debug("voter does not respond", zap.String("address", address), zap.Error(err))
	}
}

func (v *Voter) others() []string {
	out := slices.Clone(v.opts.Voters)
	for _, s := range v.servers() {
		out = append(out, string(s.Address))
	}
	slices.Sort(out)
	out = slices.Compact(out)
	return slices.DeleteFunc(out, func(a string) bool { return a == v.opts.Advertise })
}

func (v *Voter) evaluate() {
	v.mu.Lock()
	known := make(map[string]hello, len(v.hellos))
	for a, h := range v.hellos {
		known[a] = h.hello
	}
	silent, fenced := maps.Clone(v.silent), v.fenced != ""
	leaderless := time.Since(v.lastLed) > adoptAfter*v.opts.ElectionTimeout // longer than an election takes
	v.mu.Unlock()
	if v.checkRollback(known) {
		fenced = true
	}
	v.endVerification(known)
	own := v.Status()
	if by, ok := superseded(own, known); ok && !fenced {
		v.fence(FencedRecovered, fmt.Sprintf("quorum was recovered by force at %s, without this voter, which is now "+
			"fenced. Move its directory %s away, restart it, and add it (lockstep pair add)", by, v.opts.Dir))
		fenced = true
	}
	gone := own.LeaderID != own.ID && removed(own, known) || len(own.Voters) > 0 && !lists(own, own.ID)
	v.setConditions(v.evaluateConditions(own, known, silent))
	nonMember := fenced || gone || !own.Member
	switch {
	case !nonMember:
		v.setProblem(v.memberProblem(own, known, silent))
		if !leaderless {
			return
		}
	case len(own.Voters) == 0 && v.mayForm(known):
		v.form(known)
		return
	case fenced:
	case gone:
		v.setProblem(fmt.Sprintf("this voter (%s) was removed from the cluster: stop it, or move its directory %s "+
			"away, restart it, and add it (lockstep pair add %s)", own.ID, v.opts.Dir, own.Address))
	default:
		v.setProblem(v.waitReason(own, known, silent))
	}
	v.adoptLeader(known)
}

func removed(own Status, known map[string]hello) bool {
	for _, h := range known {
		if own.Member && h.Status.State == hraft.Leader.String() && h.Status.Member &&
			h.Status.LastIndex > own.LastIndex && !lists(h.Status, own.ID) {
			return true
		}
	}
	return false
}

func lists(s Status, id string) bool {
	return slices.ContainsFunc(s.Voters, func(m Member) bool { return m.ID == id })
}

func superseded(own Status, known map[string]hello) (string, bool) {
	for address, h := range known {
		if len(own.Voters) > 0 && h.Status.Recoveries > own.Recoveries && h.Status.Member && !lists(h.Status, own.ID) {
			return address, true
		}
	}
	return "", false
}

// fence stops raft on this voter until the process ends. The other voters continue.
func (v *Voter) fence(why fencing, text string) {
	v.mu.Lock()
	v.fenced, v.verifying = why, false
	v.mu.Unlock()
	v.setProblem(text)
	if err := v.shutDown(); err != nil {
		v.log.Warn("raft: stop", zap.Error(err))
	}
	v.port.drop()
}

// mayForm reports whether this voter must form the cluster: all three respond, are empty and have the same three
// voters configured, and this voter has the lowest address.
func (v *Voter) mayForm(known map[string]hello) bool {
	if empty, err := v.disk.empty(); err != nil || !empty || v.opts.Advertise != v.opts.Voters[0] {
		return false
	}
	for _, address := range v.opts.Voters[1:] {
		h, ok := known[address]
		if !ok || !h.Empty || h.Status.Address != address || !slices.Equal(h.Configured, v.opts.Voters) {
			return false
		}
	}
	return true
}

// form bootstraps the cluster. The other voters receive the configuration with this voter's log.
func (v *Voter) form(known map[string]hello) {
	servers := []hraft.Server{{ID: hraft.ServerID(v.disk.id), Address: hraft.ServerAddress(v.opts.Advertise)}}
	for _, address := range v.opts.Voters[1:] {
		servers = append(servers, hraft.Server{
			ID:      hraft.ServerID(known[address].Status.ID),
			Address: hraft.ServerAddress(address),
		})
	}
	if err := v.raft.BootstrapCluster(hraft.Configuration{Servers: servers}).Error(); err != nil {
		v.setProblem("cannot form the cluster: " + err.Error())
		return
	}
	v.log.Info("cluster formed", zap.Strings("voters", v.opts.Voters))
}

// adoptLeader sets the leader according to the other voters' hellos if raft does not know the leader.
func (v *Voter) adoptLeader(known map[string]hello) {
	if addr, _ := v.raft.LeaderWithID(); addr != "" {
		return // raft knows the leader
	}
	var found leader
	for _, address := range slices.Sorted(maps.Keys(known)) {
		s := known[address].Status
		if !s.Member || s.LeaderID == "" || s.LeaderID == v.disk.id {
			continue
		}
		if s.LeaderID == s.ID {
			found = leader{id: s.ID, address: s.Address}
			break
		}
		found = leader{id: s.LeaderID, address: s.LeaderAddress, via: s.Address}
	}
	v.mu.Lock()
	v.adopts = true
	v.mu.Unlock()
	v.setLeader(found)
}

func (v *Voter) waitReason(own Status, known map[string]hello, silent map[string]silence) string {
	for _, h := range known {
		if !h.Status.Member {
			continue
		}
		if lists(h.Status, own.ID) {
			return "" // the leader will send the log
		}
		for _, m := range h.Status.Voters {
			if m.Address == own.Address && m.ID != own.ID {
				return fmt.Sprintf("this voter (%s) is new, but the cluster has another one at its address (%s): "+
					"the disk was lost or replaced. It has no vote until it replaces the old voter: %s", own.ID, m.ID,
					v.replaceCommand(m.ID, own.Address))
			}
		}
		return fmt.Sprintf("this voter (%s) is not a member of the cluster: lockstep pair add %s", own.ID, own.Address)
	}
	for _, address := range v.opts.Voters {
		h, ok := known[address]
		switch {
		case address == own.Address:
		case !ok && silent[address].cause != "":
			return fmt.Sprintf("cluster not formed: cannot connect to the voter at %s: %s", address,
				silent[address].cause)
		case !ok:
			return fmt.Sprintf("cluster not formed: the voter at %s does not respond", address)
		case !slices.Equal(h.Configured, v.opts.Voters):
			return fmt.Sprintf("cluster not formed: the voter at %s has the voters %v configured, this one %v", address,
				h.Configured, v.opts.Voters)
		case h.Status.Address != address:
			return fmt.Sprintf("cluster not formed: the voter at %s advertises %s", address, h.Status.Address)
		case !h.Empty:
			return fmt.Sprintf("cluster not formed: the voter at %s has the state of an older cluster, of which "+
				"this voter is not a member", address)
		}
	}
	return ""
}

func (v *Voter) memberProblem(own Status, known map[string]hello, silent map[string]silence) string {
	for _, address := range slices.Sorted(maps.Keys(known)) {
		if h := known[address]; h.ElectionTimeout != v.opts.ElectionTimeout {
			return fmt.Sprintf("voter at %s has an election timeout of %s, this one %s: use the same value, otherwise "+
				"elections are slow", address, h.ElectionTimeout, v.opts.ElectionTimeout)
		}
	}
	if text := v.rolledBackPeers(own, known); text != "" {
		return text
	}
	var gone []string
	for _, m := range own.Voters {
		silentPeer, ok := silent[m.Address]
		switch {
		case ok && silentPeer.cause != "":
			return fmt.Sprintf("cannot connect to the voter at %s: %s", m.Address, silentPeer.cause)
		case ok && time.Since(silentPeer.since) > unreachableAfter:
			gone = append(gone, m.Address)
		}
	}
	switch {
	case len(gone) == 0:
		return ""
	case len(gone) < (len(own.Voters)+1)/2:
		return fmt.Sprintf("voter at %s does not respond: start it, or replace it if it is permanently lost "+
			"(lockstep pair replace); without a second voter, role changes are impossible", strings.Join(gone, " and "))
	default:
		return fmt.Sprintf("voters at %s do not respond, and role changes are impossible without a majority: start "+
			"them, or fix the network to them; only if their disks are permanently lost, recover the quorum "+
			"(docs/how-to/deploy-with-a-witness.md)", strings.Join(gone, " and "))
	}
}

// setProblem records a problem that an operator can fix. A problem is logged only if it persists.
func (v *Voter) setProblem(text string) {
	v.mu.Lock()
	if v.problem != text {
		v.problem, v.problemSince = text, time.Now()
	}
	persists := time.Since(v.problemSince) >= problemDelay
	last := v.logged
	if text == "" || persists {
		v.logged = text
	}
	v.mu.Unlock()
	switch {
	case text == "" && last != "":
		v.log.Info("voter has recovered")
	case text != "" && persists && text != last:
		v.log.Warn("voter needs attention", zap.String("problem", text))
	}
}
