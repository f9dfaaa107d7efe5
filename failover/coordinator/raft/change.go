// SPDX-License-Identifier: Apache-2.0

package raft

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	hraft "github.com/hashicorp/raft"
	"go.uber.org/zap"
)

// minVoters is the minimum number of voters after a removal without a replacement.
const minVoters = 2

// changeLimit limits a membership change, which may include sending the log.
const changeLimit = 10 * time.Second

// change is a membership change: an addition, a removal, or a replacement if both are set.
type change struct {
	Remove string `json:"remove,omitempty"` // id or address
	Add    string `json:"add,omitempty"`    // address
}

// changeMembers executes a membership change on the leader, and returns the added member, if any. A repeated addition
// or replacement has no effect; a repeated removal returns ErrNotMember.
func (v *Voter) changeMembers(ctx context.Context, c change) (Member, error) {
	l, err := v.confirmed(ctx)
	if err != nil {
		return Member{}, err
	}
	select {
	case v.change <- struct{}{}:
		defer func() { <-v.change }()
	case <-ctx.Done():
		return Member{}, fmt.Errorf("%w: another change is in progress", ErrMembership)
	}
	var incoming hello
	if c.Add != "" {
		if incoming, err = v.checkJoining(ctx, c.Add); err != nil {
			return Member{}, err
		}
		m, member := v.find(incoming.Status.ID)
		old, found := v.find(c.Remove)
		switch {
		case member && found && old.ID != m.ID: // otherwise the cluster would have one voter less
			return Member{}, fmt.Errorf("%w: voter at %s (%s) is already a member, so it cannot replace %s",
				ErrMembership, c.Add, m.ID, c.Remove)
		case member && m.Address == c.Add && m.Voter:
			return m, nil
		}
	}
	if c.Remove != "" {
		if err := v.remove(ctx, l, c, incoming.Status.ID); err != nil {
			return Member{}, err
		}
	}
	if c.Add == "" {
		return Member{}, nil
	}
	return v.add(incoming.Status.ID, c.Add)
}

// checkJoining checks the voter to be added, and returns its hello. It retries.
func (v *Voter) checkJoining(ctx context.Context, address string) (hello, error) {
	if err := checkAddress(address); err != nil {
		return hello{}, fmt.Errorf("%w: %w", ErrMembership, err)
	}
	limited, cancel := context.WithTimeout(ctx, v.opts.RequestTimeout)
	defer cancel()
	if address == v.opts.Advertise {
		return v.hello()
	}
	var h hello
	err := retry(limited, func() (again bool, err error) {
		h, err = v.peers.at(address).hello(limited)
		return err != nil, err
	})
	switch {
	case err != nil:
		return hello{}, fmt.Errorf("%w: voter at %s does not respond; start it first: %w", rejection(ctx), address, err)
	case h.Status.Address != address:
		return hello{}, fmt.Errorf("%w: voter at %s advertises %s: use that address, or correct its configuration",
			ErrMembership, address, h.Status.Address)
	}
	if _, member := v.find(h.Status.ID); !member && !h.Empty {
		return hello{}, fmt.Errorf("%w: voter at %s (%s) has the state of a cluster of which it is not a member: stop it, "+
			"move its raft directory away (on a node: only 'raft' in the data directory), and restart it", ErrMembership,
			address, h.Status.ID)
	}
	return h, nil
}

func (v *Voter) find(idOrAddress string) (Member, bool) {
	for _, s := range v.servers() {
		if string(s.ID) == idOrAddress || string(s.Address) == idOrAddress {
			return v.member(s), true
		}
	}
	return Member{}, false
}

// remove removes a member. `incoming` is the ID of its replacement, if any.
func (v *Voter) remove(ctx context.Context, l *leadership, c change, incoming string) error {
	m, ok := v.find(c.Remove)
	switch {
	case !ok && c.Add != "" && len(v.servers()) < voterCount:
		return nil // an earlier replacement was interrupted after the removal
	case !ok:
		return fmt.Errorf("%w: %s", ErrNotMember, c.Remove)
	case m.ID == incoming:
		return nil // only its address changes
	}
	if err := v.awaitRemainingQuorum(ctx, l, m.ID, c.Add != ""); err != nil {
		return err
	}
	if m.ID == v.disk.id {
		// Another voter must remove this voter.
		err := v.wait(ctx, v.raft.LeadershipTransfer())
		v.log.Info("leadership transfer requested before the removal of this voter", zap.Error(err))
		return errNotLeader
	}
	if err := v.committed(v.raft.RemoveServer(hraft.ServerID(m.ID), 0, changeLimit)); err != nil {
		return err
	}
	v.log.Warn("voter removed", zap.String("id", m.ID), zap.String("address", m.Address))
	return nil
}

// awaitRemainingQuorum checks that a majority would remain after the removal of a voter. It considers only responses
// to messages sent after the call: if a voter that has just stopped were counted, the removal would not be
// committed, and no leader would remain.
func (v *Voter) awaitRemainingQuorum(ctx context.Context, l *leadership, without string, replaced bool) error {
	rest := 0
	for _, s := range v.servers() {
		if string(s.ID) != without && s.Suffrage == hraft.Voter {
			rest++
		}
	}
	if rest < minVoters && !replaced {
		return fmt.Errorf("%w: %d voters would remain, at least %d are required: replace the voter instead",
			ErrMembership, rest, minVoters)
	}
	limited, cancel := context.WithTimeout(ctx, v.opts.RequestTimeout)
	defer cancel()
	err := v.awaitMajority(limited, l, without)
	if errors.Is(err, errTooFew) {
		return fmt.Errorf("%w: no majority would remain: %w", rejection(ctx), err)
	}
	return err
}

// rejection returns the kind of error for a change that was rejected after a timeout: errNotLeader if ctx has ended;
// otherwise ErrMembership.
func rejection(ctx context.Context) error {
	if ctx.Err() != nil {
		return errNotLeader
	}
	return ErrMembership
}

// retry calls try until again is false or ctx ends, and returns the last error. The error of a try during which ctx
// ended does not replace an earlier error.
func retry(ctx context.Context, try func() (again bool, err error)) error {
	var last error
	for {
		again, err := try()
		if !again {
			return err
		}
		if last == nil || ctx.Err() == nil {
			last = err
		}
		select {
		case <-ctx.Done():
			return last
		case <-time.After(retryMin):
		}
	}
}

func (v *Voter) add(id, address string) (Member, error) {
	servers := v.servers()
	known := slices.ContainsFunc(servers, func(s hraft.Server) bool { return string(s.ID) == id })
	for _, s := range servers {
		if string(s.Address) == address && string(s.ID) != id {
			return Member{}, fmt.Errorf("%w: voter %s already has the address %s: replace it (lockstep pair replace)",
				ErrMembership, s.ID, address)
		}
	}
	if !known && len(servers) >= voterCount {
		return Member{}, fmt.Errorf("%w: cluster already has %d voters: remove or replace one", ErrMembership,
			len(servers))
	}
	if err := v.committed(v.raft.AddVoter(hraft.ServerID(id), hraft.ServerAddress(address), 0,
		changeLimit)); err != nil {
		return Member{}, err
	}
	v.log.Warn("voter added", zap.String("id", id), zap.String("address", address))
	m, ok := v.find(id)
	if !ok {
		return Member{}, errNotLeader // another leader has changed the members
	}
	return m, nil
}

// committed waits for a change, regardless of the request's context.
func (v *Voter) committed(f hraft.IndexFuture) error {
	endWith(f, v.ended)
	switch err := f.Error(); {
	case err == nil:
		return nil
	case errors.Is(err, hraft.ErrNotLeader), errors.Is(err, hraft.ErrLeadershipTransferInProgress),
		errors.Is(err, hraft.ErrEnqueueTimeout):
		return fmt.Errorf("%w: %w", errNotLeader, err)
	default:
		return fmt.Errorf("%w: %w: check the members, and retry if needed", errUncertain, err)
	}
}

// Members returns the leader's list of members, or ErrNoQuorum.
func (v *Voter) Members(ctx context.Context) ([]Member, error) {
	return askMembers(ctx, v, v.opts.RequestTimeout)
}

// Add adds the voter at this address. The voter must be running, with a directory (Options.Dir) that has no log and
// no snapshot. Add returns ErrMembership or ErrNoQuorum.
func (v *Voter) Add(ctx context.Context, address string) (Member, error) {
	return askChange(ctx, v, change{Add: address})
}

// Remove removes a member. The request is retried if the leader changes. It returns ErrNotMember, ErrMembership or
// ErrNoQuorum.
func (v *Voter) Remove(ctx context.Context, idOrAddress string) error {
	_, err := askChange(ctx, v, change{Remove: idOrAddress})
	return err
}

// Replace removes a member and adds the voter at newAddress, which may be the same address. It is idempotent. It
// returns ErrNotMember, ErrMembership or ErrNoQuorum.
func (v *Voter) Replace(ctx context.Context, idOrAddress, newAddress string) (Member, error) {
	return askChange(ctx, v, change{Remove: idOrAddress, Add: newAddress})
}

func askMembers(ctx context.Context, g leaderFinder, limit time.Duration) (out []Member, err error) {
	_, err = atLeader(ctx, g, limit, func(ctx context.Context, s service) (err error) {
		out, err = s.members(ctx)
		return err
	})
	return out, timeoutError(err)
}

func askChange(ctx context.Context, g leaderFinder, c change) (out Member, _ error) {
	outcomeUnknown, err := atLeader(ctx, g, changeLimit+time.Second, func(ctx context.Context, s service) (err error) {
		out, err = s.changeMembers(ctx, c)
		return err
	})
	if outcomeUnknown && c.Add == "" && errors.Is(err, ErrNotMember) {
		return Member{}, nil // an earlier try has removed the voter
	}
	return out, timeoutError(err)
}

func timeoutError(err error) error {
	if err == nil || final(err) || errors.Is(err, ErrNoQuorum) {
		return err
	}
	return fmt.Errorf("%w: %w", ErrNoQuorum, err)
}
