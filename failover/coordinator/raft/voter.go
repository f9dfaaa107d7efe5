// SPDX-License-Identifier: Apache-2.0

package raft

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	hraft "github.com/hashicorp/raft"
	"go.uber.org/zap"

	"github.com/lockstep-mq/lockstep/failover"
	"github.com/lockstep-mq/lockstep/failover/coordinator/internal/latest"
)

// stallLimit is after how long without an answer a disk counts as stalled, at least.
const stallLimit = time.Second

const (
	// probeInterval is how often a voter writes to its disk to see whether it answers.
	probeInterval = 5 * time.Second
	// probeLimit is after how long without an answer to a probe a disk counts as silent. A probe has no one waiting for
	// it, and a busy disk may take its time.
	probeLimit = 5 * time.Second
)

// leader of the voters as one of them knows it. The zero leader: none is known.
type leader struct {
	id, address string
	via         string // the address of a voter that hands requests on, if the leader cannot be talked to; or empty
}

// contact is whom to talk to.
func (l leader) contact() string {
	if l.via != "" {
		return l.via
	}
	return l.address
}

// Voter is one of the three. It runs raft, answers the others, and finds the leader for the coordinators that use it.
type Voter struct {
	opts   Options
	log    *zap.Logger
	disk   *disk
	fsm    *fsm
	logs   *watchedLog
	seen   *sightings
	port   *port
	trans  *transport
	raft   *hraft.Raft
	peers  *peers
	api    *api
	change chan struct{} // one slot: a change of the members under way

	leaders *latest.Value[leader]
	leading atomic.Pointer[leadership]
	notify  chan bool // raft: this voter begins or ceases to lead

	mu         sync.Mutex // guards what follows
	trouble    string
	troubled   time.Time          // since when
	logged     string             // the trouble that was logged last
	heard      map[string]heard   // what the other voters have said, by address
	silent     map[string]silence // those that do not answer, by address
	fenced     fencing            // why this voter takes no part any more
	consulting bool               // this voter has just started, and hears the others out before it takes part
	answered   time.Time          // when another was first asked that answered
	notices    []failover.Notice  // what an operator has to know of the voters; never changed in place
	suspect    string             // what a voter that connected knows to be missing here; empty: nothing
	adopts     bool               // raft does not tell this voter who leads, so that it goes by what others say
	lastLed    time.Time          // when raft last knew a leader
	transfer   struct {           // of raft's leadership to the witness
		last  time.Time
		pause time.Duration
	}

	rlog  raftLog
	probe stopwatch
	look  chan struct{} // one slot: a reason to look around now
	stop  context.CancelFunc
	wg    sync.WaitGroup
}

// heard is another voter's answer, and when it came.
type heard struct {
	hello hello
	asked time.Time // when the round began that it answered in
	at    time.Time
}

// silence of another voter.
type silence struct {
	since time.Time
	cause string // in words, if an operator can do something about it
}

// Start starts a voter: it listens, and forms or finds its cluster in the background. Errors are about the options, the
// directory and the port only.
func Start(o Options) (_ *Voter, err error) {
	o, err = o.withDefaults()
	if err != nil {
		return nil, err
	}
	if err := o.TLS.check(); err != nil {
		return nil, err
	}
	rlog := newRaftLog(o.Logger.Named("raft"))
	d, err := openDisk(o.Dir, o.UnsafeNoFsync, rlog)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, d.close())
		}
	}()
	if err := d.identify(o.Kind); err != nil {
		return nil, err
	}
	seen, err := openSightings(d)
	if err != nil {
		return nil, err
	}
	why, err := d.putBack()
	if err != nil {
		return nil, err
	}
	ln, err := o.Bind(context.Background(), o.Listen)
	if err != nil {
		return nil, fmt.Errorf("raft: listen for the other voters: %w: is the port in use?", err)
	}
	v := &Voter{
		opts: o, log: o.Logger, disk: d, fsm: newFSM(), logs: watchLog(d.store), change: make(chan struct{}, 1),
		leaders: latest.New(leader{}), notify: make(chan bool, 16), heard: make(map[string]heard),
		silent: make(map[string]silence), lastLed: time.Now(), seen: seen, consulting: true, suspect: why,
		look: make(chan struct{}, 1), rlog: rlog, probe: stopwatch{began: time.Now()},
	}
	dial := &dialer{from: d.id, tls: o.TLS, dial: o.Dial, about: v.fillHandshake}
	v.peers = newPeers(dial)
	v.port = newPort(ln, o.TLS, v.addresses, o.Advertise, 2*o.RequestTimeout, v.admit, o.Logger)
	v.trans = newTransport(v.port, dial, seen, o.RequestTimeout, rlog)
	v.trans.leads, v.trans.stalled = v.leads, v.stalled
	rc := patient(raftConfig(d.id, o.ElectionTimeout, rlog))
	rc.NotifyCh = v.notify
	r, err := hraft.NewRaft(rc, v.fsm, v.logs, d.store, d.snaps, v.trans)
	if err != nil {
		_ = v.trans.Close()
		v.port.Close()
		return nil, fmt.Errorf("raft: start with %s: %w: if it is damaged, move it away and replace this voter "+
			"(lockstep pair replace)", o.Dir, err)
	}
	v.run(r)
	return v, nil
}

// run starts what goes on in the background.
func (v *Voter) run(r *hraft.Raft) {
	v.mu.Lock()
	v.raft = r // admit and leads look at it from now on
	v.mu.Unlock()
	ctx, stop := context.WithCancel(context.Background())
	v.stop = stop
	v.api = serveAPI(v.port.api, v)
	changes := make(chan hraft.Observation, 16)
	r.RegisterObserver(hraft.NewObserver(changes, false, func(o *hraft.Observation) bool {
		_, ok := o.Data.(hraft.LeaderObservation)
		return ok
	}))
	v.wg.Go(func() { v.followLeader(ctx, changes) })
	v.wg.Go(func() { v.takeTurns(ctx) })
	v.wg.Go(func() { v.pollOthers(ctx) })
	v.wg.Go(func() { v.probeDisk(ctx) })
	v.wg.Go(func() {
		v.seen.run(ctx, func(err error) {
			v.log.Error("what is known of the other voters cannot be written",
				zap.Error(err))
		})
	})
}

// ID of the voter: durable, and a new one for a new directory.
func (v *Voter) ID() string { return v.disk.id }

// Address that the other voters reach this one by.
func (v *Voter) Address() string { return v.opts.Advertise }

// ListenAddress is where the voter really listens: of use if the port was left to the system.
func (v *Voter) ListenAddress() string { return v.port.ln.Addr().String() }

// engine is raft, or nil while it is being started.
func (v *Voter) engine() *hraft.Raft {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.raft
}

// servers of the cluster as this voter knows them; empty before it is in one.
func (v *Voter) servers() []hraft.Server {
	r := v.engine()
	if r == nil {
		return nil
	}
	f := r.GetConfiguration() // no I/O: it is there already
	if f.Error() != nil {
		return nil
	}
	return f.Configuration().Servers
}

// addresses of all voters that this one knows.
func (v *Voter) addresses() []string {
	known := slices.Clone(v.opts.Voters)
	for _, s := range v.servers() {
		known = append(known, string(s.Address))
	}
	return known
}

// leads tells whether this voter leads in a term, with `id` as one of its followers.
func (v *Voter) leads(term uint64, id hraft.ServerID) bool {
	r := v.engine()
	return r != nil && r.State() == hraft.Leader && r.CurrentTerm() == term &&
		slices.ContainsFunc(v.servers(), func(s hraft.Server) bool { return s.ID == id })
}

// stalled tells whether the disk under the log does not answer.
func (v *Voter) stalled() bool {
	return v.logs.writing.elapsed() > max(2*v.opts.ElectionTimeout, stallLimit)
}

// diskSilent tells whether the disk does not answer, be it that nothing but a probe has been written to it lately.
func (v *Voter) diskSilent() bool { return v.stalled() || v.probe.elapsed() > probeLimit }

// probeDisk writes to the disk now and then, until ctx ends: between changes of role raft writes nothing, and a disk
// that does not answer any more would be found out by the failover that needs it.
func (v *Voter) probeDisk(ctx context.Context) {
	tick := time.NewTicker(probeInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		v.probe.start()
		err := v.disk.probe()
		v.probe.stop()
		if err != nil && ctx.Err() == nil {
			v.log.Error("the disk under the voter's log cannot be written", zap.Error(err))
		}
	}
}

// admit tells whether a connection is meant for this voter, and whether it may have it.
func (v *Voter) admit(kind byte, g handshake) error {
	v.mu.Lock()
	fenced, consulting := v.fenced, v.consulting
	v.mu.Unlock()
	switch {
	case kind != kindRaft:
		return nil
	case fenced != "":
		return fmt.Errorf("this voter takes no part any more: %s", fenced)
	case g.To != v.disk.id:
		return fmt.Errorf("the voter here is %s, not %s: its directory was lost or replaced", v.disk.id, g.To)
	case consulting:
		return errConsulting
	}
	return v.checkHandshake(g)
}

// Status tells what this voter knows, without a question to another one.
func (v *Voter) Status() Status {
	s := Status{
		ID: v.disk.id, Address: v.opts.Advertise, Kind: v.opts.Kind, Recoveries: v.fsm.now.Get().Recoveries,
		Voters: []Member{},
	}
	lead := v.leaders.Get()
	s.LeaderID, s.LeaderAddress = lead.id, lead.address
	if r := v.engine(); r != nil {
		s.State, s.Term, s.LastIndex, s.AppliedIndex = r.State().String(), r.CurrentTerm(), r.LastIndex(),
			r.AppliedIndex()
	}
	for _, srv := range v.servers() {
		m := v.member(srv)
		s.Member = s.Member || m.ID == s.ID && m.Voter
		s.Voters = append(s.Voters, m)
	}
	v.mu.Lock()
	s.Trouble = v.trouble
	s.Fenced = string(v.fenced)
	s.Member = s.Member && v.fenced == ""
	v.mu.Unlock()
	return s
}

// member describes a server of raft's configuration.
func (v *Voter) member(s hraft.Server) Member {
	m := Member{
		ID: string(s.ID), Address: string(s.Address), Kind: kindOf(string(s.ID)), Voter: s.Suffrage == hraft.Voter,
		Leader: string(s.ID) == v.leaders.Get().id,
	}
	if m.ID == v.disk.id {
		m.LastContact = time.Now()
	} else {
		m.LastContact = v.trans.lastContact(m.ID)
	}
	return m
}

// Close stops the voter and waits until it has stopped. Coordinators that use it fail from then on.
func (v *Voter) Close() error {
	v.stop()
	err := v.raft.Shutdown().Error()
	v.trans.settle()
	_ = v.trans.Close()
	v.port.Close()
	v.api.close()
	v.wg.Wait()
	v.peers.close() // after the last request of this voter
	if err != nil {
		err = fmt.Errorf("raft: stop: %w", err)
	}
	return errors.Join(err, v.seen.sync(), v.disk.close())
}

// followLeader keeps v.leaders up to date with what raft knows.
func (v *Voter) followLeader(ctx context.Context, changes <-chan hraft.Observation) {
	// Observations are dropped when the reader does not take them in time, so that each is no more than a reason to
	// look.
	tick := time.NewTicker(v.opts.ElectionTimeout)
	defer tick.Stop()
	for {
		addr, id := v.raft.LeaderWithID()
		v.sawLeader(leader{id: string(id), address: string(addr)})
		select {
		case <-ctx.Done():
			return
		case <-changes:
		case <-tick.C:
		}
	}
}

// sawLeader notes who leads by raft's own word.
func (v *Voter) sawLeader(now leader) {
	v.mu.Lock()
	if now.address != "" {
		v.lastLed, v.adopts = time.Now(), false
	}
	adopts := v.adopts
	v.mu.Unlock()
	if !adopts {
		v.setLeader(now)
	}
}

func (v *Voter) setLeader(now leader) {
	var before leader
	v.leaders.Update(func(l *leader) bool {
		before = *l
		*l = now
		return before != now
	})
	if before != now && now.id != "" {
		v.log.Info("the voters have a leader", zap.String("leader", now.id), zap.String("address", now.address),
			zap.String("via", now.via))
	} else if before != now {
		v.log.Info("the voters have no leader at the moment", zap.String("was", before.id))
	}
}
