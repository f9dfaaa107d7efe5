// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"context"
	"errors"
	"fmt"

	"github.com/lockstep-mq/lockstep/replication"
	"github.com/lockstep-mq/lockstep/server/api/apierror"
	"github.com/lockstep-mq/lockstep/server/ops/member"
	"github.com/lockstep-mq/lockstep/store/query"
	"github.com/lockstep-mq/lockstep/store/txn"
)

// directory is the part of *member.Manager that the service uses.
type directory interface {
	NotFound(queue string) error
	// Partitions returns the number of partitions of a queue; 0 if it is not partitioned, or not known to be.
	Partitions(queue string) int
	Create(
		ctx context.Context, p *replication.Primary, queue, group string, commit func(epoch uint64) error,
	) error
	Deleted(queue string, epoch uint64)
}

var _ directory = (*member.Manager)(nil)

// SetMember makes the service follow the directory of a fleet. It must be called before the service is used. If m is
// nil, the call has no effect.
func (s *Service) SetMember(m *member.Manager) {
	if m != nil {
		s.fleet = m
	}
}

// resolve reads the state that a request depends on, at one LSN: the stored result of a retry (INV-10), or the queues
// of the request. missing is the error for queues that do not exist at this pair; Found of their targets is false.
//
// Each lookup of a queue name from a client must call resolve.
func (s *Service) resolve(
	p *txn.Producer, retry bool, targets []query.Target,
) (prior *query.Prior, missing, err error) {
	prior, err = query.Lookup(s.store, p, retry, targets)
	if err != nil || prior != nil || allFound(targets) {
		return prior, nil, err
	}
	if partitioned := s.partitioned(targets); partitioned != nil {
		return nil, partitioned, nil
	}
	if s.fleet == nil {
		return nil, txn.ErrQueueNotFound, nil
	}
	if missing = s.missing(targets); errors.Is(missing, apierror.ErrNotOwner) {
		return nil, missing, nil
	}
	// A queue may have been created between the lookup and the read of the directory.
	prior, err = query.Lookup(s.store, p, retry, targets)
	if err != nil || prior != nil || allFound(targets) {
		return prior, nil, err
	}
	return nil, missing, nil
}

func allFound(targets []query.Target) bool {
	for i := range targets {
		if !targets[i].Found {
			return false
		}
	}
	return true
}

// missing returns the error for targets of which at least one does not exist at this pair:
//   - txn.ErrQueueNotFound if no pair owns one of them
//   - apierror.ErrCrossPair if they belong to different pairs
//   - an error of the directory if an owner is unknown
//   - an *apierror.NotOwnerError if all of them belong to one other pair
func (s *Service) missing(targets []query.Target) error {
	local := ""
	var unknown error
	var owner, other *apierror.NotOwnerError
	for i := range targets {
		if targets[i].Found {
			local = targets[i].Queue
			continue
		}
		err := s.fleet.NotFound(targets[i].Queue)
		found, is := errors.AsType[*apierror.NotOwnerError](err)
		switch {
		case errors.Is(err, txn.ErrQueueNotFound):
			if len(targets) > 1 {
				err = named(err, targets[i].Queue)
			}
			return err
		case !is:
			unknown = err
		case owner == nil:
			owner = found
		case found.Pair != owner.Pair:
			other = found
		}
	}
	switch {
	case other != nil:
		return fmt.Errorf("%w: %q belongs to pair %s, %q to pair %s", apierror.ErrCrossPair, owner.Queue, owner.Pair,
			other.Queue, other.Pair)
	case owner != nil && local != "":
		return fmt.Errorf("%w: %q belongs to pair %s, %q to this pair", apierror.ErrCrossPair, owner.Queue, owner.Pair,
			local)
	case unknown != nil:
		return unknown
	}
	return owner
}

// missingOf is like missing, for names that are first looked up in the store. It returns nil if all queues exist at
// this pair or the lookup fails. For a pair without a fleet, it returns only errors of partitioned queues.
func (s *Service) missingOf(names ...string) error {
	if len(names) == 0 {
		return nil
	}
	targets := make([]query.Target, 0, len(names))
	for _, name := range names {
		if name != "" {
			targets = append(targets, query.Target{Queue: name})
		}
	}
	_, missing, err := s.resolve(nil, false, targets)
	if err != nil || s.fleet == nil && !errors.Is(missing, apierror.ErrPartitioned) {
		return nil //nolint:nilerr // the caller has another error
	}
	return missing
}

// isMissing reports whether an error means that a queue does not exist at this pair.
func isMissing(err error) bool {
	return errors.Is(err, txn.ErrQueueNotFound) || replaces(err)
}

// named adds the name of a queue to the bare txn.ErrQueueNotFound. Other errors already contain the name.
func named(err error, queue string) error {
	if err == txn.ErrQueueNotFound { //nolint:errorlint // an error that wraps it contains the name
		return fmt.Errorf("%w: %q", err, queue)
	}
	return err
}

// withOthers returns the error for a request with several queues. err is the error for one of them. If this queue
// belongs to another pair, the others determine whether the client can send the request to that pair.
func (s *Service) withOthers(err error, queues []string) error {
	if len(queues) < 2 || !errors.Is(err, apierror.ErrNotOwner) {
		return err
	}
	if all := s.missingOf(queues...); all != nil {
		return all
	}
	return err
}

// crossPair returns the error for a request that only this pair can execute, but that refers to a queue of another
// pair.
func crossPair(err error) error {
	if owner, is := errors.AsType[*apierror.NotOwnerError](err); is {
		return fmt.Errorf("%w: %q belongs to pair %s", apierror.ErrCrossPair, owner.Queue, owner.Pair)
	}
	return err
}

// missingBefore returns the error for a request that was refused at an earlier LSN because a queue was missing at
// this pair or was fenced.
func (s *Service) missingBefore(queues ...string) error {
	if missing := s.missingOf(queues...); missing != nil || s.fleet == nil || len(queues) == 0 {
		return missing
	}
	return fmt.Errorf("queue %q: %w", queues[0], txn.ErrMoved)
}

// refusal returns the error of a transaction that was refused when it was applied, or nil. missing is the error of
// resolve for a retry that was logged although its queues do not exist at this pair. If the transaction was logged
// earlier, missing is nil, and the owners of the queues are looked up.
func (s *Service) refusal(r *txn.Result, kept bool, missing error, queues ...string) error {
	if r.Code != txn.ErrQueueNotFound && r.Code != txn.ErrMoved {
		return apierror.Refusal(r, kept)
	}
	if missing == nil && (r.Duplicate || r.Code == txn.ErrMoved) {
		missing = s.missingBefore(queues...)
	}
	if missing != nil && !replaces(missing) {
		missing = nil
	}
	return apierror.RefusalWith(r, kept, missing)
}
