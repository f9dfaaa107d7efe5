// SPDX-License-Identifier: Apache-2.0

package top

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/client/admin"
	"github.com/lockstep-mq/lockstep/cmd/internal/pairstatus"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

const (
	statusLimit = 2 * time.Second
	// queuesLimit is the time limit for finding the active and listing its queues.
	queuesLimit = 5 * time.Second
	rightsEvery = 10 * time.Second
)

// Messages from the source to the model.
type (
	statusMsg struct {
		at     time.Time
		status pairstatus.Status
		rates  *pairstatus.Rates
	}
	queuesMsg struct {
		page page
		err  error
	}
	// rightsMsg reports whether the operator may switch over and pause.
	rightsMsg struct{ operate bool }
)

type source struct {
	client    *client.Client
	addresses []string
	interval  time.Duration
	// onPair runs a function with a client of the pair in --addr, which may be a replica.
	onPair func(context.Context, func(context.Context, *client.Client) error) error

	mu    sync.Mutex // guards the fields below
	query query
	asked chan struct{} // closed when the query changes
}

func newSource(c *client.Client, addresses []string, interval time.Duration) *source {
	return &source{
		client: c, addresses: addresses, interval: interval,
		query: query{limit: window}, asked: make(chan struct{}),
	}
}

// run polls the nodes until ctx ends, and sends each message with tell. The returned channel is closed after the last
// message.
func (s *source) run(ctx context.Context, tell func(any)) (done <-chan struct{}) {
	var running sync.WaitGroup
	answers := make(chan answer)
	for i := range s.addresses {
		running.Go(func() { s.queryNode(ctx, i, answers) })
	}
	running.Go(func() { s.reportStatus(ctx, answers, tell) })
	running.Go(func() { s.reportQueues(ctx, tell) })
	running.Go(func() { s.reportRights(ctx, tell) })
	ended := make(chan struct{})
	go func() {
		running.Wait()
		close(ended)
	}()
	return ended
}

type answer struct {
	node int
	pairstatus.Answer
}

// queryNode polls one node. Each node has its own loop, so that an unresponsive node does not delay the requests to
// the other node.
func (s *source) queryNode(ctx context.Context, i int, answers chan<- answer) {
	for ctx.Err() == nil {
		limited, cancel := context.WithTimeout(ctx, statusLimit)
		r, err := pairstatus.Query(limited, s.client, s.addresses[i])
		cancel()
		select {
		case answers <- answer{i, pairstatus.Answer{Address: s.addresses[i], Response: r, Err: err}}:
		case <-ctx.Done():
		}
		wait(ctx, s.interval, nil)
	}
}

// reportStatus combines the responses once per interval, and immediately if a role changes or a node stops or starts
// responding.
func (s *source) reportStatus(ctx context.Context, answers <-chan answer, tell func(any)) {
	all := make([]pairstatus.Answer, len(s.addresses))
	for i, address := range s.addresses {
		all[i] = pairstatus.Answer{Address: address, Err: errors.New("not polled yet")}
	}
	var rates rateTracker
	ticker := time.NewTicker(s.interval)
	defer ticker.Stop()
	known := 0 // number of responses and errors, at most the number of nodes
	show := func() {
		if known == len(all) {
			now := pairstatus.Combine(all)
			tell(statusMsg{time.Now(), now, rates.take(&now)})
		}
	}
	for {
		select {
		case a := <-answers:
			before := all[a.node]
			all[a.node] = a.Answer
			known = min(known+1, len(all))
			if (before.Err == nil) != (a.Err == nil) || before.Response.GetRole() != a.Response.GetRole() {
				show()
			}
		case <-ticker.C:
			show()
		case <-ctx.Done():
			return
		}
	}
}

// rateTracker computes rates between two different responses of the active.
type rateTracker struct {
	before *pairstatus.Status
	last   *pairstatus.Rates
}

func (k *rateTracker) take(now *pairstatus.Status) *pairstatus.Rates {
	active, was := activeOf(now), activeOf(k.before)
	if active != nil && was != nil && active.NodeID == was.NodeID && active.AnsweredAt().Equal(was.AnsweredAt()) {
		return k.last // unchanged
	}
	k.last, k.before = pairstatus.RatesBetween(k.before, now), now
	return k.last
}

func activeOf(s *pairstatus.Status) *pairstatus.Node {
	if s == nil {
		return nil
	}
	for i := range s.Nodes {
		if n := &s.Nodes[i]; n.Error == "" && pairstatus.BaseRole(n.Role) == pairstatus.Active {
			return n
		}
	}
	return nil
}

// reportQueues lists the requested queues. After a slow listing it pauses, so that listings take at most about a tenth
// of the time. A changed query ends the pause.
func (s *source) reportQueues(ctx context.Context, tell func(any)) {
	for ctx.Err() == nil {
		s.mu.Lock()
		q, asked := s.query, s.asked
		s.mu.Unlock()
		start := time.Now()
		limited, cancel := context.WithTimeout(ctx, queuesLimit)
		p, err := listQueues(limited, s.client, q)
		cancel()
		if ctx.Err() != nil {
			return
		}
		tell(queuesMsg{p, err})
		wait(ctx, max(s.interval, 10*time.Since(start)), asked)
	}
}

func (s *source) want(q query) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if q == s.query {
		return
	}
	s.query = q
	close(s.asked)
	s.asked = make(chan struct{})
}

func (s *source) reportRights(ctx context.Context, tell func(any)) {
	for ctx.Err() == nil {
		limited, cancel := context.WithTimeout(ctx, queuesLimit)
		me, err := admin.New(s.client).WhoAmI(limited)
		cancel()
		pause := rightsEvery
		if err == nil {
			tell(rightsMsg{mayOperate(me)})
		} else {
			pause = s.interval
		}
		wait(ctx, pause, nil)
	}
}

// mayOperate reports whether the caller may have the operate right. The rights of roles are not known here. For a
// caller with any role, mayOperate returns true, and the node decides.
func mayOperate(me *pb.WhoAmIResponse) bool {
	if me.GetOpen() || me.GetBootstrapOperator() {
		return true
	}
	for _, rule := range me.GetRules() {
		if len(rule.GetRoles()) > 0 {
			return true
		}
		for _, right := range rule.GetRights() {
			if right == pb.AccessRight_ACCESS_RIGHT_OPERATE {
				return true
			}
		}
	}
	return false
}

// once polls the nodes twice, one interval apart, and returns the second status with the rates. If no node responds, it
// polls them only once.
func (s *source) once(ctx context.Context) (*Screen, error) {
	limited, cancel := context.WithTimeout(ctx, statusLimit)
	defer cancel()
	before := pairstatus.QueryAll(limited, s.client, s.addresses, statusLimit)
	p := &Screen{At: time.Now(), Status: before, Queues: []Queue{}}
	if before.Answered() == 0 {
		return p, nil
	}
	list := func() {
		limited, cancel := context.WithTimeout(ctx, queuesLimit)
		defer cancel()
		got, err := listQueues(limited, s.client, query{limit: window})
		if err != nil {
			p.QueuesError = err.Error()
			return
		}
		p.Queues, p.QueuesTotal, p.QueuesError = got.queues, got.total, ""
	}
	list()
	wait(ctx, s.interval, nil)
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	p.Status = pairstatus.QueryAll(ctx, s.client, s.addresses, statusLimit)
	p.At = time.Now()
	p.Rates = pairstatus.RatesBetween(&before, &p.Status)
	list()
	return p, nil
}

// wait returns after d, when ctx ends, or when sooner is closed.
func wait(ctx context.Context, d time.Duration, sooner <-chan struct{}) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-sooner:
	case <-ctx.Done():
	}
}
