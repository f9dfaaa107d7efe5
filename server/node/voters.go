// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"sync"
	"time"

	"github.com/lockstep-mq/lockstep/failover/coordinator/raft"
	"github.com/lockstep-mq/lockstep/server/observe/metrics"
)

const voterInterval = 5 * time.Second

type votersPoll struct {
	mu     sync.Mutex // guards the fields below
	voters []metrics.Voter
}

// lastVoters returns the result of the last poll. It returns nil for a pair without voters, and before the first
// poll.
func (l *conditionMonitor) lastVoters() []metrics.Voter {
	l.voters.mu.Lock()
	defer l.voters.mu.Unlock()
	return l.voters.voters
}

func (l *conditionMonitor) watchVoters(ctx context.Context) {
	c, ok := l.n.coordinator.(*raft.Coordinator)
	if !ok {
		return
	}
	r := l.n.cfg.Coordinator.Raft
	ticker := time.NewTicker(voterInterval)
	defer ticker.Stop()
	for {
		// Use new connections: a voter presents its current certificate only when a connection begins.
		admin, err := raft.NewAdmin(raft.AdminOptions{
			Voters: r.Voters, TLS: l.n.secrets.voters(), Dial: l.n.environment.Dial,
		})
		if err != nil {
			l.n.log.Warn("voter status is not available") // the coordinator has logged the reason
			return
		}
		l.pollVoters(ctx, c.Voter().Status(), admin)
		_ = admin.Close() // the results of its calls are no longer needed
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
	}
}

type voterResponse struct {
	member raft.Member
	status raft.Status
	err    error
}

// up reports whether the voter has responded with the expected identity and is a member that is not fenced.
func (r *voterResponse) up() bool {
	return r.err == nil && r.status.ID == r.member.ID && r.status.Member && r.status.Fenced == ""
}

func (l *conditionMonitor) pollVoters(ctx context.Context, own raft.Status, admin *raft.Admin) {
	answers := make([]voterResponse, len(own.Voters))
	var requests sync.WaitGroup
	for i, m := range own.Voters {
		requests.Go(func() {
			answers[i].member = m
			if m.ID == own.ID {
				answers[i].status = own
				return
			}
			answers[i].status, answers[i].err = admin.Status(ctx, m.Address)
		})
	}
	requests.Wait()
	if ctx.Err() != nil {
		return
	}
	witness := map[string]bool{}
	for _, a := range answers {
		witness[a.member.Address] = a.member.Kind == raft.KindWitness
	}
	l.n.secrets.members(witness)
	voters := voterMetrics(answers)
	l.voters.mu.Lock()
	defer l.voters.mu.Unlock()
	l.voters.voters = voters
}

// voterMetrics converts the responses of voters to metrics.
func voterMetrics(answers []voterResponse) []metrics.Voter {
	newest := uint64(0)
	for i := range answers {
		if answers[i].up() {
			newest = max(newest, answers[i].status.LastIndex)
		}
	}
	voters := make([]metrics.Voter, 0, len(answers))
	for i := range answers {
		a := &answers[i]
		v := metrics.Voter{Address: a.member.Address, Kind: string(a.member.Kind)}
		if a.up() {
			v.Up, v.Behind = true, newest-a.status.LastIndex
		}
		voters = append(voters, v)
	}
	return voters
}
