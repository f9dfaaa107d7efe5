// SPDX-License-Identifier: Apache-2.0

// Package memory implements an in-process coordinator, for simulations and for a node without a partner.
package memory

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/lockstep-mq/lockstep/failover"
	"github.com/lockstep-mq/lockstep/failover/coordinator/internal/dupdetect"
	"github.com/lockstep-mq/lockstep/failover/coordinator/internal/latest"
)

// DefaultLeaseTTL is the lifetime of a liveness key after its last renewal.
const DefaultLeaseTTL = 3 * time.Second

// Server stores the record, the mark and the leases of one pair.
type Server struct {
	ttl time.Duration

	mu     sync.Mutex // guards the fields below
	down   bool
	record *failover.Record
	rev    failover.Revision
	mark   failover.Mark
	live   map[process]lease
	seq    int64 // of the last announcement
	conns  []*Coordinator
}

type process struct {
	node uuid.UUID
	name string
}

type lease struct {
	live        failover.Live
	first, last int64 // sequence numbers of announcements
	until       time.Time
	timer       *time.Timer
}

// NewServer returns a Server without a record. If leaseTTL is not positive, DefaultLeaseTTL is used.
func NewServer(leaseTTL time.Duration) *Server {
	if leaseTTL <= 0 {
		leaseTTL = DefaultLeaseTTL
	}
	return &Server{ttl: leaseTTL, live: make(map[process]lease)}
}

// Standalone returns a Server for a node without a partner. Its record is derived from the fence in the store's
// identity and the end of the log, and the node activates in the next term. For a new store, or a store restored from
// a backup, the Server has no record.
func Standalone(id failover.Identity, self failover.NodeInfo) *Server {
	s := NewServer(0)
	if id.Empty() || id.Restored {
		return s
	}
	s.record = &failover.Record{
		Version: failover.RecordVersion, PairID: id.PairID, Config: max(id.Fence.Config, 1),
		Term:   max(id.Fence.Term, id.End.Term, 1),
		Active: self.ID, InSync: []failover.Member{id.Member()}, MinInSync: 1, OpID: "standalone",
		Nodes: []failover.NodeInfo{self},
	}
	s.rev = 1
	return s
}

// Connect opens a connection for one node.
func (s *Server) Connect() *Coordinator {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := &Coordinator{s: s, seen: latest.New(failover.Observation{}), closed: make(chan struct{})}
	s.conns = append(s.conns, c)
	s.notify()
	return c
}

// SetDown makes the server unreachable for all connections, or reachable again. No data is lost.
func (s *Server) SetDown(down bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.down = down
	s.notify()
}

// Forget deletes the record and the mark, to simulate a coordinator that lost all data.
func (s *Server) Forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.record, s.mark = nil, failover.Mark{}
	s.rev++
	s.notify()
}

// Image is a snapshot of a Server's record and mark.
type Image struct {
	record *failover.Record
	rev    failover.Revision
	mark   failover.Mark
}

// Image returns a snapshot of the record and the mark.
func (s *Server) Image() Image {
	s.mu.Lock()
	defer s.mu.Unlock()
	return Image{record: s.record, rev: s.rev, mark: s.mark}
}

// Restore restores a snapshot, to simulate a coordinator that was restored from a backup and assigns the same revisions
// again.
func (s *Server) Restore(i Image) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.record, s.rev, s.mark = i.record, i.rev, i.mark
	s.notify()
}

// notify updates the observation of each connection. s.mu is held.
func (s *Server) notify() {
	lives, all := s.lives()
	for _, c := range s.conns {
		c.seen.Update(func(o *failover.Observation) bool {
			o.Reachable = c.up()
			if !o.Reachable {
				return true
			}
			o.Record, o.Revision, o.Missing = s.record, s.rev, s.record == nil
			o.Live, o.LiveKnown, o.Duplicate = lives, true, c.duplicates.See(0, all)
			return true
		})
	}
}

// lives returns the newest announced process of each node, and all announcements. s.mu is held.
func (s *Server) lives() ([]failover.Live, []dupdetect.Entry) {
	newest := make(map[uuid.UUID]lease, len(s.live))
	all := make([]dupdetect.Entry, 0, len(s.live))
	for _, l := range s.live {
		all = append(all, dupdetect.Entry{Live: l.live, Seq: l.last})
		if have, ok := newest[l.live.Node.ID]; !ok || l.first > have.first {
			newest[l.live.Node.ID] = l
		}
	}
	lives := make([]failover.Live, 0, len(newest))
	for _, l := range newest {
		lives = append(lives, l.live)
	}
	slices.SortFunc(lives, func(a, b failover.Live) int { return slices.Compare(a.Node.ID[:], b.Node.ID[:]) })
	return lives, all
}

// Coordinator is one node's connection. It implements failover.Coordinator.
type Coordinator struct {
	s      *Server
	seen   *latest.Value[failover.Observation]
	closed chan struct{}

	// guarded by s.mu
	duplicates   dupdetect.Tracker
	disconnected bool
	loseReply    bool
	isClosed     bool
}

var _ failover.Coordinator = (*Coordinator)(nil)

// SetReachable interrupts or restores this connection.
func (c *Coordinator) SetReachable(reachable bool) {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	c.disconnected = !reachable
	c.s.notify()
}

// LoseNextReply makes the next Swap that is applied return ErrUnknownOutcome.
func (c *Coordinator) LoseNextReply() {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	c.loseReply = true
}

// up reports whether the connection works. s.mu is held.
func (c *Coordinator) up() bool { return !c.s.down && !c.disconnected && !c.isClosed }

// Name implements failover.Coordinator.
func (c *Coordinator) Name() string { return "memory" }

// Load implements failover.Coordinator.
func (c *Coordinator) Load(ctx context.Context) (failover.Record, failover.Revision, error) {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	switch {
	case ctx.Err() != nil || !c.up():
		return failover.Record{}, 0, failover.ErrUnreachable
	case c.s.record == nil:
		return failover.Record{}, 0, failover.ErrNoRecord
	default:
		return c.s.record.Clone(), c.s.rev, nil
	}
}

// Swap implements failover.Coordinator.
func (c *Coordinator) Swap(
	ctx context.Context, expect failover.Revision, next failover.Record,
) (failover.Revision, error) {
	if err := next.Validate(); err != nil {
		return 0, err
	}
	next = next.Clone()
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	if ctx.Err() != nil || !c.up() {
		return 0, failover.ErrUnknownOutcome
	}
	now := failover.Revision(0)
	if c.s.record != nil {
		now = c.s.rev
	}
	switch {
	case now != expect && c.s.record != nil && c.s.record.OpID == next.OpID:
		return now, nil
	case now != expect:
		return 0, failover.ErrConflict
	}
	c.s.rev++
	c.s.record = &next
	c.s.notify()
	if c.loseReply {
		c.loseReply = false
		return 0, failover.ErrUnknownOutcome
	}
	return c.s.rev, nil
}

// WriteMark implements failover.Coordinator.
func (c *Coordinator) WriteMark(ctx context.Context, m failover.Mark) (failover.Mark, error) {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	if ctx.Err() != nil || !c.up() {
		return failover.Mark{}, fmt.Errorf("write high-water mark: %w", failover.ErrUnknownOutcome)
	}
	before := c.s.mark
	if before.Less(m) {
		c.s.mark = m
	}
	return before, nil
}

// LoadMark implements failover.Coordinator.
func (c *Coordinator) LoadMark(ctx context.Context) (failover.Mark, error) {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	if ctx.Err() != nil || !c.up() {
		return failover.Mark{}, fmt.Errorf("load high-water mark: %w", failover.ErrUnreachable)
	}
	return c.s.mark, nil
}

// Watch implements failover.Coordinator.
func (c *Coordinator) Watch(ctx context.Context) <-chan failover.Observation {
	return c.seen.Watch(ctx)
}

// Announce implements failover.Coordinator.
func (c *Coordinator) Announce(ctx context.Context, live failover.Live) error {
	if strings.TrimSpace(live.Process) == "" {
		return errors.New("announce: process id is empty")
	}
	tick := time.NewTicker(c.s.ttl / 3)
	defer tick.Stop()
	c.updateDuplicates(func(t *dupdetect.Tracker) { t.Begin(live) })
	defer c.updateDuplicates((*dupdetect.Tracker).End)
	for {
		c.renew(live)
		select {
		case <-ctx.Done():
			c.withdraw(live)
			return nil
		case <-c.closed:
			return errors.New("announce: coordinator connection was closed")
		case <-tick.C:
		}
	}
}

func (c *Coordinator) renew(live failover.Live) {
	s := c.s
	s.mu.Lock()
	defer s.mu.Unlock()
	if !c.up() {
		return
	}
	until := time.Now().Add(s.ttl)
	who := process{node: live.Node.ID, name: live.Process}
	old, ok := s.live[who]
	s.seq++
	now := lease{
		live: live, first: s.seq, last: s.seq, until: until,
		timer: time.AfterFunc(s.ttl, func() { s.expire(who) }),
	}
	if ok {
		old.timer.Stop()
		now.first = old.first
	}
	s.live[who] = now
	c.seen.Update(func(o *failover.Observation) bool {
		o.LeaseUntil = until
		return true
	})
	if !ok || old.live != live || c.seen.Get().Duplicate != nil {
		s.notify()
	}
}

func (s *Server) expire(who process) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if l, ok := s.live[who]; ok && !time.Now().Before(l.until) {
		delete(s.live, who)
		s.notify()
	}
}

// updateDuplicates updates the tracker of this connection, and notifies all connections.
func (c *Coordinator) updateDuplicates(change func(*dupdetect.Tracker)) {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	change(&c.duplicates)
	c.s.notify()
}

func (c *Coordinator) withdraw(live failover.Live) {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	who := process{node: live.Node.ID, name: live.Process}
	if l, ok := c.s.live[who]; ok && c.up() {
		l.timer.Stop()
		delete(c.s.live, who)
		c.s.notify()
	}
}

// Close implements failover.Coordinator.
func (c *Coordinator) Close() error {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	if !c.isClosed {
		c.isClosed = true
		close(c.closed)
		c.s.conns = slices.DeleteFunc(c.s.conns, func(o *Coordinator) bool { return o == c })
	}
	return nil
}
