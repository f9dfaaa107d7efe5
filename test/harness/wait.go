// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// PollInterval is the polling interval for conditions of a pair.
const PollInterval = 5 * time.Millisecond

// statusBound limits a status request, because a paused node does not respond.
const statusBound = time.Second

func (p *Pair) statuses(ctx context.Context) []*pb.GetStatusResponse {
	ctx, cancel := context.WithTimeout(ctx, statusBound)
	defer cancel()
	out := make([]*pb.GetStatusResponse, len(p.Nodes))
	var wg sync.WaitGroup
	for i, n := range p.Nodes {
		wg.Go(func() {
			if s, err := n.Status(ctx); err == nil {
				out[i] = s
			}
		})
	}
	wg.Wait()
	return out
}

// Wait waits until holds returns true for the statuses of Nodes. A status is nil if the node does not respond. label
// is part of the error.
func (p *Pair) Wait(ctx context.Context, label string, holds func([]*pb.GetStatusResponse) bool) error {
	ticker := time.NewTicker(PollInterval)
	defer ticker.Stop()
	last := make([]*pb.GetStatusResponse, len(p.Nodes))
	for {
		s := p.statuses(ctx)
		if holds(s) {
			return nil
		}
		if ctx.Err() == nil {
			last = s
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for %s: %w; %s", label, ctx.Err(), p.describe(last))
		case <-ticker.C:
		}
	}
}

func (p *Pair) describe(all []*pb.GetStatusResponse) string {
	reported := make([]string, len(all))
	for i, s := range all {
		reported[i] = p.Nodes[i].Name + ": no response"
		if s == nil {
			continue
		}
		reported[i] = fmt.Sprintf("%s: %v (%s) term %d config %d log %d durable %d commit %d applied %d", p.Nodes[i].Name,
			s.GetRole(), s.GetReason(), s.GetPair().GetTerm(), s.GetPair().GetConfig(),
			s.GetStore().GetLogEnd().GetLsn(), s.GetStore().GetLogDurable().GetLsn(), s.GetStore().GetCommitLsn(),
			s.GetStore().GetAppliedLsn())
	}
	return strings.Join(reported, "; ")
}

// WaitReady waits until the pair is in sync, or the standalone node serves. It returns an error if a node or the
// witness exits. progress, if not nil, is called with each set of statuses.
func (p *Pair) WaitReady(ctx context.Context, progress func([]*pb.GetStatusResponse)) error {
	var failed error
	err := p.Wait(ctx, "nodes that are ready", func(s []*pb.GetStatusResponse) bool {
		for _, n := range p.Processes() {
			if failed = n.Failure(); failed != nil {
				return true
			}
		}
		if progress != nil {
			progress(s)
		}
		if p.o.Standalone {
			return serves(s[0])
		}
		return activeOf(s) >= 0
	})
	if failed != nil {
		return failed
	}
	if err != nil {
		for _, n := range p.Nodes {
			err = fmt.Errorf("%w\n--- end of %s:\n%s", err, n.LogFile(), n.LogTail())
		}
	}
	return err
}

// serves reports whether a node can acknowledge in its role.
func serves(s *pb.GetStatusResponse) bool {
	return s.GetRole() == pb.Role_ROLE_ACTIVE || s.GetRole() == pb.Role_ROLE_ACTIVE_ALONE
}

// activeOf returns the index of the active node if the other node is its standby and both report it; otherwise -1.
func activeOf(s []*pb.GetStatusResponse) int {
	return slices.IndexFunc(s, func(active *pb.GetStatusResponse) bool {
		return active.GetRole() == pb.Role_ROLE_ACTIVE && slices.ContainsFunc(s, func(o *pb.GetStatusResponse) bool {
			return o.GetRole() == pb.Role_ROLE_STANDBY && o.GetPair().GetConfig() == active.GetPair().GetConfig()
		})
	})
}

// WaitInSync waits until one node is active, the other node is its standby, and both report these roles.
func (p *Pair) WaitInSync(ctx context.Context) (active, standby *Node, err error) {
	err = p.Wait(ctx, "a pair in sync", func(s []*pb.GetStatusResponse) bool {
		i := activeOf(s)
		if i >= 0 {
			active, standby = p.Nodes[i], p.Other(p.Nodes[i])
		}
		return i >= 0
	})
	return active, standby, err
}

// WaitActive waits for a node that reports that it serves clients. If both nodes report this, one of them has not
// yet detected that it was replaced, and WaitActive returns the node with the higher term.
func (p *Pair) WaitActive(ctx context.Context) (*Node, error) {
	var found *Node
	err := p.Wait(ctx, "an active node", func(s []*pb.GetStatusResponse) bool {
		var term uint64
		found = nil
		for i, n := range p.Nodes {
			if serves(s[i]) && (found == nil || s[i].GetPair().GetTerm() > term) {
				found, term = n, s[i].GetPair().GetTerm()
			}
		}
		return found != nil
	})
	return found, err
}

// WaitRole waits until n has one of the roles.
func (p *Pair) WaitRole(ctx context.Context, n *Node, roles ...pb.Role) error {
	return p.Wait(ctx, fmt.Sprintf("%s in role %v", n.Name, roles), func(s []*pb.GetStatusResponse) bool {
		i := slices.Index(p.Nodes, n)
		return s[i] != nil && slices.Contains(roles, s[i].GetRole())
	})
}

// WaitApplied waits until both nodes have applied the same last record. No client may publish in the meantime.
func (p *Pair) WaitApplied(ctx context.Context) error {
	return p.Wait(ctx, "both nodes at the same LSN", func(s []*pb.GetStatusResponse) bool {
		a, b := s[0].GetStore(), s[1].GetStore()
		return a != nil && b != nil && a.GetAppliedLsn() == b.GetAppliedLsn() &&
			a.GetAppliedLsn() == a.GetLogEnd().GetLsn() && b.GetAppliedLsn() == b.GetLogEnd().GetLsn()
	})
}

// Digests returns the digests of both nodes at the same record. No client may publish in the meantime. Internal
// records may still be added, such as the requeue of a disconnected consumer's messages. A read that fails because
// its connection was lost is retried.
func (p *Pair) Digests(ctx context.Context) ([]*pb.GetDigestResponse, error) {
	for {
		if err := p.WaitApplied(ctx); err != nil {
			return nil, err
		}
		digests, err := p.digests(ctx)
		switch {
		case status.Code(err) == codes.Unavailable && ctx.Err() == nil:
		case err != nil:
			return nil, err
		case digests[0].GetLsn() == digests[1].GetLsn():
			return digests, nil
		}
	}
}

func (p *Pair) digests(ctx context.Context) ([]*pb.GetDigestResponse, error) {
	digests := make([]*pb.GetDigestResponse, len(p.Nodes))
	for i, n := range p.Nodes {
		var err error
		digests[i], err = pb.NewAdminServiceClient(n.conn).GetDigest(ctx, &pb.GetDigestRequest{})
		if err != nil {
			return nil, fmt.Errorf("digest of node %s: %w", n.Name, err)
		}
	}
	return digests, nil
}
