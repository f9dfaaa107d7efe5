// SPDX-License-Identifier: Apache-2.0

package site

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/client/admin"
	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	"github.com/lockstep-mq/lockstep/cmd/internal/pairstatus"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

const (
	// otherTimeout limits the requests to the other site, which may be unreachable from this machine.
	otherTimeout = 2 * time.Second
	// findPause is the pause between two searches for an active node.
	findPause = 200 * time.Millisecond
)

var errNoActive = cli.WithHint(errors.New("no node of the pair is active"), "`lockstep status` to show nodes, "+
	"conditions and actions")

// pair is one of the two sites, as its nodes report it.
type pair struct {
	node   *admin.Node // the active; without one, a node that responds
	active bool        // node is the active
	status *pb.GetStatusResponse
	state  *pb.GetSiteResponse
}

// site returns the state of the site; nil for a nil pair.
func (p *pair) site() *pb.SiteState {
	if p == nil {
		return nil
	}
	return p.state.GetSite()
}

// remote returns the addresses of the other site.
func (p *pair) remote() []string {
	all := slices.Concat(p.state.GetRemote().GetAddresses(), p.status.GetSite().GetRemoteAddresses())
	slices.Sort(all)
	return slices.Compact(all)
}

// lookUp returns the pair at the given addresses, with the state of the other site as this pair reports it. If no node
// is active, the returned pair contains a node that responds.
func lookUp(ctx context.Context, c *client.Client, addresses []string) (*pair, error) {
	answers := queryAll(ctx, c, addresses)
	if !slices.ContainsFunc(answers, isActive) {
		answers = append(answers, queryAll(ctx, c, activeOf(answers))...)
	}
	i := slices.IndexFunc(answers, isActive)
	if i < 0 {
		i = slices.IndexFunc(answers, func(a pairstatus.Answer) bool { return a.Err == nil })
	}
	if i < 0 {
		return nil, cli.NoAnswer(ctx, pairstatus.Combine(answers))
	}
	n, err := cli.NodeAt(c, answers[i].Address)
	if err != nil {
		return nil, err
	}
	p := &pair{node: n, active: isActive(answers[i]), status: answers[i].Response}
	if p.state, err = n.Site(ctx); err != nil {
		return nil, err
	}
	return p, nil
}

// waitActive is like lookUp, but waits until a node is active. It returns immediately if no node responds.
func waitActive(ctx context.Context, c *client.Client, addresses []string) (*pair, error) {
	for {
		p, err := lookUp(ctx, c, addresses)
		if err != nil || p.active {
			return p, err
		}
		pause := time.NewTimer(findPause)
		select {
		case <-pause.C:
		case <-ctx.Done():
			pause.Stop()
			return nil, errNoActive
		}
	}
}

func queryAll(ctx context.Context, c *client.Client, addresses []string) []pairstatus.Answer {
	answers := make([]pairstatus.Answer, len(addresses))
	var queries sync.WaitGroup
	for i, address := range addresses {
		queries.Go(func() {
			answers[i].Address = address
			answers[i].Response, answers[i].Err = pairstatus.Query(ctx, c, address)
		})
	}
	queries.Wait()
	return answers
}

func isActive(a pairstatus.Answer) bool {
	switch a.Response.GetRole() {
	case pb.Role_ROLE_ACTIVE, pb.Role_ROLE_ACTIVE_ALONE, pb.Role_ROLE_BLOCKED:
		return a.Err == nil
	default:
		return false
	}
}

// activeOf returns the addresses of active nodes that were not queried, according to the nodes that responded.
func activeOf(answers []pairstatus.Answer) (addresses []string) {
	for _, a := range answers {
		for _, n := range a.Response.GetPair().GetNodes() {
			known := slices.ContainsFunc(answers, func(o pairstatus.Answer) bool { return o.Address == n.GetAddress() })
			if n.GetActive() && n.GetAddress() != "" && !known && !slices.Contains(addresses, n.GetAddress()) {
				addresses = append(addresses, n.GetAddress())
			}
		}
	}
	return addresses
}

// lookUpOther returns the pair at the other site, or an error if that pair cannot be reached from this machine.
func lookUpOther(ctx context.Context, c *client.Client, here *pair) (*pair, error) {
	addresses := here.remote()
	if len(addresses) == 0 {
		return nil, errNoRemote
	}
	ctx, cancel := context.WithTimeout(ctx, otherTimeout)
	defer cancel()
	return lookUp(ctx, c, addresses)
}

var errNoRemote = cli.WithHint(errors.New("the pair has no other site"), "site.name and site.remote in the "+
	"configuration of the nodes")
