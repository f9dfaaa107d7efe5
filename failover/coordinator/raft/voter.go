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

// stallLimit is the minimum duration of a log write after which the disk is considered stalled.
const stallLimit = time.Second

const (
	probeInterval = 5 * time.Second
	// probeLimit is the duration of a probe after which the disk is considered stalled. It is longer than stallLimit.
	probeLimit = 5 * time.Second
)

type leader struct {
	id, address string
	via         string // address of a voter that forwards requests, if the leader is unreachable
}

func (l leader) contact() string {
	if l.via != "" {
		return l.via
	}
	return l.address
}

// Voter is one of the three voters. It runs raft, serves the other voters, and finds the leader for its coordinators.
type Voter struct {
	opts   Options
	log    *zap.Logger
	disk   *disk
	fsm    *fsm
	logs   *watchedLog
	seen   *progressStore
	port   *port
	trans  *transport
	raft   *hraft.Raft
	peers  *peers
	api    *api
	change chan struct{} // one slot: a membership change in progress

	leaders *latest.Value[leader]
	leading atomic.Pointer[leadership]
	notify  chan bool // receives true when this voter gains the leadership, and false when it loses it

	mu            sync.Mutex // guards the fields below
	problem       string
	problemSince  time.Time
	logged        string                   // last logged problem
	hellos        map[string]receivedHello // last hellos of the other voters, by address
	silent        map[string]silence       // voters that do not respond, by address
	fenced        fencing                  // why this voter is fenced
	verifying     bool                     // collecting hellos after the start, before it participates
	firstResponse time.Time                // start of the first poll with a response
	conditions    []failover.Condition     // never changed in place
	suspectedLoss string                   // progress missing on this voter, according to another voter
	adopts        bool                     // raft does not know the leader, so the other voters' hellos are used
	lastLed       time.Time                // when raft last had a leader
	transfer      struct {                 // of the leadership to the witness
		last  time.Time
		pause time.Duration
	}

	rlog          raftLog
	probe         stopwatch
	pollRequested chan struct{} // one slot
	ended         chan struct{} // closed when raft has stopped
	endedOnce     sync.Once
	stop          context.CancelFunc
	wg            sync.WaitGroup
}

type receivedHello struct {
	hello  hello
	polled time.Time // start of the poll
	at     time.Time
}

type silence struct {
	since time.Time
	cause string // description, if an operator can fix it
}

// Start starts a voter, which forms or finds its cluster in the background. It fails only if the options are invalid,
// or the directory or the port is unusable.
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
	seen, err := openProgress(d)
	if err != nil {
		return nil, err
	}
	why, err := d.rollback()
	if err != nil {
		return nil, err
	}
	ln, err := o.Bind(context.Background(), o.Listen)
	if err != nil {
		return nil, fmt.Errorf("raft: listen: %w", err)
	}
	v := &Voter{
		opts: o, log: o.Logger, disk: d, fsm: newFSM(), logs: watchLog(d.store), change: make(chan struct{}, 1),
		leaders: latest.New(leader{}), notify: make(chan bool, 16), hellos: make(map[string]receivedHello),
		silent: make(map[string]silence), lastLed: time.Now(), seen: seen, verifying: true, suspectedLoss: why,
		pollRequested: make(chan struct{}, 1), ended: make(chan struct{}), rlog: rlog, probe: stopwatch{began: time.Now()},
	}
	dial := &dialer{from: d.id, tls: o.TLS, timeout: o.RequestTimeout, dial: o.Dial, describe: v.fillHandshake}
	v.peers = newPeers(dial)
	v.port = newPort(ln, o.TLS, v.addresses, o.Advertise, v.admit, o.Logger)
	v.trans = newTransport(v.port, dial, seen, o.RequestTimeout, rlog)
	v.trans.leads, v.trans.follows, v.trans.stalled = v.leads, v.follows, v.stalled
	rc := withLongTimeouts(raftConfig(d.id, o.ElectionTimeout, rlog))
	rc.NotifyCh = v.notify
	r, err := hraft.NewRaft(rc, v.fsm, v.logs, d.store, d.snaps, v.trans)
	if err != nil {
		_ = v.trans.Close()
		v.port.Close()
		return nil, fmt.Errorf("raft: start in %s (if it is corrupt, move it away and replace this voter: "+
			"lockstep pair replace): %w", o.Dir, err)
	}
	v.run(r)
	return v, nil
}

func (v *Voter) run(r *hraft.Raft) {
	v.mu.Lock()
	v.raft = r // admit and leads use it from now on
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
	v.wg.Go(func() { v.followLeadership(ctx) })
	v.wg.Go(func() { v.pollOthers(ctx) })
	v.wg.Go(func() { v.probeDisk(ctx) })
	v.wg.Go(func() {
		v.seen.run(ctx, func(err error) {
			v.log.Error("cannot persist peer progress", zap.Error(err))
		})
	})
}

// ID returns the voter's ID, which is stored in its directory.
func (v *Voter) ID() string { return v.disk.id }

// Address returns the advertised address.
func (v *Voter) Address() string { return v.opts.Advertise }

// ListenAddress returns the listen address, with the actual port if it was assigned by the kernel.
func (v *Voter) ListenAddress() string { return v.port.ln.Addr().String() }

// engine returns the raft library's instance, or nil while it is starting.
func (v *Voter) engine() *hraft.Raft {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.raft
}

// servers returns the known members; empty until the voter is in a cluster.
func (v *Voter) servers() []hraft.Server {
	r := v.engine()
	if r == nil {
		return nil
	}
	f := r.GetConfiguration() // returns immediately
	if f.Error() != nil {
		return nil
	}
	return f.Configuration().Servers
}

func (v *Voter) addresses() []string {
	known := slices.Clone(v.opts.Voters)
	for _, s := range v.servers() {
		known = append(known, string(s.Address))
	}
	return known
}

// leads reports whether this voter leads in the term, and id is a member.
func (v *Voter) leads(term uint64, id hraft.ServerID) bool {
	r := v.engine()
	return r != nil && r.State() == hraft.Leader && r.CurrentTerm() == term &&
		slices.ContainsFunc(v.servers(), func(s hraft.Server) bool { return s.ID == id })
}

// follows reports whether this voter is a follower in the term.
func (v *Voter) follows(term uint64) bool {
	r := v.engine()
	return r != nil && r.State() == hraft.Follower && r.CurrentTerm() == term
}

func (v *Voter) stalled() bool {
	return v.logs.writing.elapsed() > max(2*v.opts.ElectionTimeout, stallLimit)
}

// diskStalled reports whether a log write or a probe is stalled.
func (v *Voter) diskStalled() bool { return v.stalled() || v.probe.elapsed() > probeLimit }

// probeDisk periodically writes to the disk. Raft writes only when the record or the mark changes. Without the
// probe, a stalled disk might only be detected during a failover.
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
			v.log.Error("cannot write to the disk of the raft log", zap.Error(err))
		}
	}
}

func (v *Voter) admit(kind byte, g handshake) error {
	v.mu.Lock()
	fenced, verifying := v.fenced, v.verifying
	v.mu.Unlock()
	switch {
	case kind != kindRaft:
		return nil
	case fenced != "":
		return fmt.Errorf("voter is fenced: %s", fenced)
	case g.To != v.disk.id:
		return fmt.Errorf("voter has the id %s instead of %s: its directory was lost or replaced", v.disk.id, g.To)
	case verifying:
		return errVerifying
	}
	return v.checkHandshake(g)
}

// Status returns the state of this voter and its cluster, without querying other voters.
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
	s.Problem = v.problem
	s.Fenced = string(v.fenced)
	s.Member = s.Member && v.fenced == ""
	v.mu.Unlock()
	return s
}

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

// Close stops the voter. Later calls to its coordinators return an error.
func (v *Voter) Close() error {
	v.stop()
	err := v.shutDown()
	v.trans.awaitHeartbeats()
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

// shutDown stops raft, and ends all requests to it.
func (v *Voter) shutDown() error {
	err := v.raft.Shutdown().Error()
	v.endedOnce.Do(func() { close(v.ended) })
	return err //nolint:wrapcheck // the caller adds the context
}

func (v *Voter) followLeader(ctx context.Context, changes <-chan hraft.Observation) {
	// Raft drops observations if the reader is slow: each one only triggers a check.
	tick := time.NewTicker(v.opts.ElectionTimeout)
	defer tick.Stop()
	for {
		addr, id := v.raft.LeaderWithID()
		v.leaderChanged(leader{id: string(id), address: string(addr)})
		select {
		case <-ctx.Done():
			return
		case <-changes:
		case <-tick.C:
		}
	}
}

func (v *Voter) leaderChanged(now leader) {
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
		v.log.Info("leader elected", zap.String("leader", now.id), zap.String("address", now.address),
			zap.String("via", now.via))
	} else if before != now {
		v.log.Info("no leader", zap.String("last", before.id))
	}
}

// RunWitness runs a voter without a data plane until ctx ends. With the witness, the voters keep a majority when a node
// fails. ready, if not nil, is called once, when the witness is listening; it must not close the voter.
func RunWitness(ctx context.Context, o Options, ready func(*Voter)) error {
	o.Kind = KindWitness
	v, err := Start(o)
	if err != nil {
		return err
	}
	if ready != nil {
		ready(v)
	}
	<-ctx.Done()
	return v.Close()
}
