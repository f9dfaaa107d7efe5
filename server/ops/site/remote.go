// SPDX-License-Identifier: Apache-2.0

package site

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/server/api/apierror"
	"github.com/lockstep-mq/lockstep/server/peerclient"
)

const (
	// requestTimeout limits a request to the other site.
	requestTimeout = 2 * time.Second
	// maxLearned is the maximum number of addresses learned from the other site.
	maxLearned = 8
)

// remote manages the connections to the nodes of the other site.
type remote struct {
	name       string          // of this site
	own        func() []string // returns the addresses of this site
	configured []string
	conns      *peerclient.Remotes

	mu      sync.Mutex // guards learned
	learned []string
}

func newRemote(o *Options) *remote {
	return &remote{
		name: o.Name, own: o.Addresses, configured: o.Remote, conns: peerclient.NewRemotes(o.Dial...),
	}
}

func (r *remote) close() { r.conns.Close() }

// addresses returns the configured addresses and the addresses learned from the other site.
func (r *remote) addresses() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Concat(r.configured, r.learned)
}

// learn replaces the learned addresses. It ignores addresses that are also addresses of this site.
func (r *remote) learn(addresses []string) {
	own := r.own()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.learned = nil
	for _, a := range addresses {
		if a != "" && len(r.learned) < maxLearned && !slices.Contains(r.configured, a) && !slices.Contains(own, a) {
			r.learned = append(r.learned, a)
		}
	}
	r.conns.Forget(func(a string, _ bool) bool {
		return !slices.Contains(r.learned, a) && !slices.Contains(r.configured, a)
	})
}

func (r *remote) client(address string) (pb.SiteServiceClient, error) {
	c, err := r.conns.Conn(address)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnreachable, err)
	}
	return pb.NewSiteServiceClient(c), nil
}

type remoteAnswer struct {
	address string
	state   *pb.SiteState
	err     error
}

// find queries all known nodes of the other site, and learns its addresses. It returns the address and the state of the
// node that is active there.
func (r *remote) find(ctx context.Context) (address string, state *pb.SiteState, err error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	addresses := r.addresses()
	if len(addresses) == 0 {
		return "", nil, fmt.Errorf("%w: site.remote is not set", ErrRole)
	}
	answers := make(chan remoteAnswer, len(addresses))
	for _, a := range addresses {
		go func() {
			st, err := r.ask(ctx, a)
			answers <- remoteAnswer{a, st, err}
		}()
	}
	var failed []error
	best := remoteAnswer{}
	for range addresses {
		a := <-answers
		if a.err != nil {
			failed = append(failed, fmt.Errorf("%s: %w", a.address, a.err))
			continue
		}
		if best.state == nil || a.state.GetEpoch() > best.state.GetEpoch() {
			best = a
		}
		cancel() // the requests to the other nodes are no longer needed
	}
	if best.state == nil {
		return "", nil, fmt.Errorf("%w: %w", ErrUnreachable, errors.Join(failed...))
	}
	r.learn(best.state.GetAddresses())
	return best.address, best.state, nil
}

// ask requests the state of the other site from the node at an address. The error wraps ErrRole if the node belongs to
// this site.
func (r *remote) ask(ctx context.Context, address string) (*pb.SiteState, error) {
	c, err := r.client(address)
	if err != nil {
		return nil, err
	}
	resp, err := c.GetSite(ctx, &pb.GetSiteRequest{Local: true}, grpc.WaitForReady(false))
	if err != nil {
		return nil, fromStatus(err)
	}
	if name := resp.GetSite().GetName(); r.name != "" && name == r.name {
		return nil, fmt.Errorf("%w: it has the name of this site, %s", ErrRole, name)
	}
	return resp.GetSite(), nil
}

func fromStatus(err error) error { return apierror.FromPeer(err, ErrUnreachable) }
