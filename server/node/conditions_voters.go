package node

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/lockstep-mq/lockstep/failover"
	raftcoord "github.com/lockstep-mq/lockstep/failover/raft"
	"github.com/lockstep-mq/lockstep/server/conditions"
	"github.com/lockstep-mq/lockstep/server/metrics"
)

const (
	// voterInterval is how often all voters are asked how they are.
	voterInterval = 5 * time.Second
	// voterBehind is how many entries a voter may have less than another one.
	voterBehind = 1000
)

// votersLook is what the voters said last, when they were asked.
type votersLook struct {
	mu      sync.Mutex // guards what follows
	voters  []metrics.Voter
	reports []conditions.Report
}

// votersSeen is what the last look has found; nil on a pair without voters.
func (l *lookout) votersSeen() []metrics.Voter {
	l.voters.mu.Lock()
	defer l.voters.mu.Unlock()
	return l.voters.voters
}

// watchVoters asks the voters of a raft coordinator again and again, until ctx ends. A quorum that stands hides from everybody else that one of
// them is gone.
func (l *lookout) watchVoters(ctx context.Context) {
	c, ok := l.n.coordinator.(*raftcoord.Coordinator)
	if !ok {
		return
	}
	r := l.n.cfg.Coordinator.Raft
	o := raftcoord.AdminOptions{Voters: r.Voters}
	if r.TLS.CA != "" {
		o.TLS = &raftcoord.TLS{CA: r.TLS.CA, Cert: r.TLS.Cert, Key: r.TLS.Key}
	}
	admin, err := raftcoord.NewAdmin(o)
	if err != nil {
		l.n.log.Warn("the voters cannot be watched") // the coordinator has the same settings, and has said why
		return
	}
	defer func() { _ = admin.Close() }() // nothing depends on how the calls end
	ticker := time.NewTicker(voterInterval)
	defer ticker.Stop()
	for {
		l.lookAtVoters(ctx, c.Voter().Status(), admin)
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
	}
}

// voterAnswer is what one voter said.
type voterAnswer struct {
	member raftcoord.Member
	status raftcoord.Status
	err    error
}

// lookAtVoters asks each member that this node's own voter knows.
func (l *lookout) lookAtVoters(ctx context.Context, own raftcoord.Status, admin *raftcoord.Admin) {
	answers := make([]voterAnswer, len(own.Voters))
	var asking sync.WaitGroup
	for i, m := range own.Voters {
		asking.Go(func() {
			answers[i].member = m
			if m.ID == own.ID {
				answers[i].status = own
				return
			}
			answers[i].status, answers[i].err = admin.Status(ctx, m.Address)
		})
	}
	asking.Wait()
	if ctx.Err() != nil {
		return
	}
	voters, reports := judgeVoters(answers)
	l.voters.mu.Lock()
	defer l.voters.mu.Unlock()
	l.voters.voters, l.voters.reports = voters, reports
}

// judgeVoters says how the voters are. Where two of three do not answer this node, it is the coordinator that it does not reach, and that is told
// elsewhere.
func judgeVoters(answers []voterAnswer) ([]metrics.Voter, []conditions.Report) {
	newest, silent := uint64(0), 0
	for i := range answers {
		newest = max(newest, answers[i].status.LastIndex)
		if answers[i].err != nil {
			silent++
		}
	}
	var voters []metrics.Voter
	var reports []conditions.Report
	add := func(k conditions.Kind, format string, args ...any) {
		if !slices.ContainsFunc(reports, func(r conditions.Report) bool { return r.Kind == k }) {
			reports = append(reports, conditions.Report{Kind: k, Details: fmt.Sprintf(format, args...)})
		}
	}
	for i := range answers {
		a := &answers[i]
		v := metrics.Voter{Address: a.member.Address, Kind: string(a.member.Kind)}
		switch {
		case a.err != nil && silent < len(answers)-silent:
			add(conditions.VoterMissing, "the voter (%s) at %s does not answer: %v", a.member.Kind, a.member.Address, a.err)
		case a.err != nil:
		case a.status.ID != a.member.ID:
			add(conditions.VoterWiped, "at %s answers voter %s, and the quorum knows %s there", a.member.Address, a.status.ID, a.member.ID)
		case !a.status.Member:
			add(conditions.VoterWiped, "the voter (%s) at %s has no vote any more: %s", a.member.Kind, a.member.Address, a.status.Trouble)
		default:
			v.Up, v.Behind = true, newest-a.status.LastIndex
			if v.Behind > voterBehind {
				add(conditions.VoterBehind, "the voter (%s) at %s has %d entries less than another one", a.member.Kind, a.member.Address, v.Behind)
			}
		}
		voters = append(voters, v)
	}
	return voters, reports
}

// fromVoters adds what the last look at the voters has found, unless failover knows the same.
func (l *lookout) fromVoters(f *findings, pair *failover.Status) {
	l.voters.mu.Lock()
	defer l.voters.mu.Unlock()
	for _, r := range l.voters.reports {
		if !slices.ContainsFunc(pair.Notices, func(n failover.Notice) bool { return n.Kind == string(r.Kind) }) {
			f.all = append(f.all, r)
		}
	}
}
