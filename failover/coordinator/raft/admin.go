// SPDX-License-Identifier: Apache-2.0

package raft

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"

	hraft "github.com/hashicorp/raft"
)

// AdminOptions configures NewAdmin.
type AdminOptions struct {
	// Voters are addresses used to find the cluster. At least one of them must respond.
	Voters []string
	// TLS is the TLS configuration; nil if the voters do not use TLS. The certificate must contain a name that the voters
	// accept.
	TLS *TLS
	// RequestTimeout limits each try of a request, except membership changes. Default 1 s.
	RequestTimeout time.Duration
	// Dial opens a connection. Default TCP.
	Dial func(ctx context.Context, address string) (net.Conn, error)
}

// Admin reads and changes the members of a cluster without being a voter.
type Admin struct {
	opts  AdminOptions
	peers *peers

	mu    sync.Mutex // guards the fields below
	known []string   // addresses
	why   error      // errors of the last search for the leader
}

var _ leaderFinder = (*Admin)(nil)

// NewAdmin returns an Admin. It does not wait for connections.
func NewAdmin(o AdminOptions) (*Admin, error) {
	if len(o.Voters) == 0 {
		return nil, errors.New("raft: no voter address (host:port)")
	}
	for _, v := range o.Voters {
		if err := checkAddress(v); err != nil {
			return nil, fmt.Errorf("raft: voter %q: %w", v, err)
		}
	}
	if err := o.TLS.check(); err != nil {
		return nil, err
	}
	if o.RequestTimeout <= 0 {
		o.RequestTimeout = DefaultRequestTimeout
	}
	if o.Dial == nil {
		o.Dial = dialTCP
	}
	return &Admin{
		opts: o, peers: newPeers(&dialer{from: "admin", tls: o.TLS, timeout: o.RequestTimeout, dial: o.Dial}),
		known: slices.Clone(o.Voters),
	}, nil
}

// Members returns the leader's list of members, or ErrNoQuorum.
func (a *Admin) Members(ctx context.Context) ([]Member, error) {
	m, err := askMembers(ctx, a, a.opts.RequestTimeout)
	return m, a.explain(err)
}

// Add adds the voter at this address to the cluster, like Voter.Add, with the same errors.
func (a *Admin) Add(ctx context.Context, address string) (Member, error) {
	m, err := askChange(ctx, a, change{Add: address})
	return m, a.explain(err)
}

// Remove removes a member, like Voter.Remove, with the same errors.
func (a *Admin) Remove(ctx context.Context, idOrAddress string) error {
	_, err := askChange(ctx, a, change{Remove: idOrAddress})
	return a.explain(err)
}

// Replace removes a member and adds the voter at newAddress, like Voter.Replace, with the same errors.
func (a *Admin) Replace(ctx context.Context, idOrAddress, newAddress string) (Member, error) {
	m, err := askChange(ctx, a, change{Remove: idOrAddress, Add: newAddress})
	return m, a.explain(err)
}

// Status returns the status of one voter, which may be a non-member.
func (a *Admin) Status(ctx context.Context, address string) (Status, error) {
	ctx, cancel := context.WithTimeout(ctx, a.opts.RequestTimeout)
	defer cancel()
	h, err := a.peers.at(address).hello(ctx)
	if err != nil {
		return Status{}, fmt.Errorf("voter at %s does not respond: %w", address, err)
	}
	return h.Status, nil
}

// Close closes the idle connections.
func (a *Admin) Close() error {
	a.peers.close()
	return nil
}

// findLeader implements leaderFinder. It queries every known voter.
func (a *Admin) findLeader(ctx context.Context) (service, string) {
	a.mu.Lock()
	known := slices.Clone(a.known)
	a.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, a.opts.RequestTimeout)
	defer cancel()
	var mu sync.Mutex
	var leads string
	var failed []error
	var wg sync.WaitGroup
	for _, address := range known {
		wg.Go(func() {
			h, err := a.peers.at(address).hello(ctx)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				failed = append(failed, err)
				return
			}
			for _, m := range h.Status.Voters {
				known = append(known, m.Address)
			}
			if h.Status.State == hraft.Leader.String() && h.Status.Member {
				leads = h.Status.Address
				cancel() // other responses are not needed
			}
		})
	}
	wg.Wait()
	slices.Sort(known)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.known, a.why = slices.Compact(known), errors.Join(failed...)
	if leads == "" {
		return nil, ""
	}
	return a.peers.at(leads), leads
}

// moved implements leaderFinder. Admin is not notified of leader changes.
func (a *Admin) moved(ctx context.Context, _ string) { <-ctx.Done() }

func (a *Admin) explain(err error) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if err == nil || final(err) || a.why == nil {
		return err
	}
	return fmt.Errorf("%w: %w", err, a.why)
}
