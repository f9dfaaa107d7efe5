// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// SetState sets the state of a registered pair to StateOpen or StateDraining. It ends an attempt of Leave. The error
// wraps ErrNotMember if this pair is not a member, or if the named pair is not registered or has not finished
// joining. It wraps ErrForgotten if Forget has removed this pair or is removing the named one, and ErrInvalid for an
// invalid name or another state. It can also wrap ErrLost, ErrContention, ErrUnavailable or a *ValueError.
func (d *Directory) SetState(ctx context.Context, pair string, state State) error {
	if state != StateOpen && state != StateDraining {
		return fmt.Errorf("%w: state %.40q", ErrInvalid, state)
	}
	return d.changeMember(ctx, pair, func(m *Member) error {
		switch m.State {
		case StateJoining:
			return fmt.Errorf("%w: pair %s has not finished joining", ErrNotMember, pair)
		case StateForgotten:
			return fmt.Errorf("%w: pair %s", ErrForgotten, pair)
		case StateOpen, StateDraining, StateLeaving:
		}
		m.State = state
		return nil
	})
}

// UpdateMember writes the addresses, labels and capacity of this pair, if they have changed. The error wraps
// ErrNotMember if the pair is not registered or Leave has not finished, and ErrPairExists if another pair has its
// name. The other errors are those of SetState.
func (d *Directory) UpdateMember(ctx context.Context, m Member) error {
	return d.changeMember(ctx, d.opts.Pair, func(old *Member) error {
		if old.ID != d.opts.PairID {
			return fmt.Errorf("%w: pair %s has the ID %s", ErrPairExists, old.Name, old.ID)
		}
		if old.State == StateLeaving {
			return fmt.Errorf("%w: pair %s has not finished leaving", ErrNotMember, old.Name)
		}
		old.Addresses, old.Labels, old.CapacityBytes = m.Addresses, m.Labels, m.CapacityBytes
		return checkMember(*old)
	})
}

func (d *Directory) changeMember(ctx context.Context, pair string, f func(*Member) error) error {
	if err := CheckPair(pair); err != nil {
		return err
	}
	key := d.key(dirPairs, pair)
	err := d.retry(ctx, func() (bool, error) {
		h, resp, err := d.readHead(ctx, clientv3.OpGet(key))
		if err != nil {
			return false, err
		}
		if err := d.sameID(h); err != nil {
			return false, err
		}
		kvs := resp.Responses[2].GetResponseRange().Kvs
		if len(kvs) == 0 {
			return false, fmt.Errorf("%w: %s", ErrNotMember, pair)
		}
		m, err := decodeMember(pair, kvs[0].Value)
		if err != nil {
			return false, &ValueError{key, err}
		}
		if err := f(&m); err != nil {
			return false, err
		}
		old, raw := string(kvs[0].Value), encode(m)
		if raw == old {
			return true, nil
		}
		done, err := d.txn(ctx, append(d.sameFleet(h), same(key, old)), clientv3.OpPut(key, raw))
		return err == nil && done.Succeeded, err
	})
	if err != nil {
		return fmt.Errorf("update pair %s: %w", pair, err)
	}
	return nil
}

func (d *Directory) sameID(h head) error {
	switch id := d.opts.State().FleetID; {
	case d.known().forgotten:
		return ErrForgotten
	case id == "":
		return ErrNotMember
	case h.fleet.ID != id:
		return ErrLost
	}
	return nil
}

// PutRule writes a placement rule. It has no effect on existing queues.
func (d *Directory) PutRule(ctx context.Context, r Rule) error {
	if err := checkRule(r); err != nil {
		return err
	}
	return d.changeRule(ctx, r.Pattern, clientv3.OpPut(d.key(dirRules, r.Pattern), encode(r)))
}

// DeleteRule deletes a placement rule, if it exists.
func (d *Directory) DeleteRule(ctx context.Context, pattern string) error {
	return d.changeRule(ctx, pattern, clientv3.OpDelete(d.key(dirRules, pattern)))
}

func (d *Directory) changeRule(ctx context.Context, pattern string, op clientv3.Op) error {
	err := d.retry(ctx, func() (bool, error) {
		h, _, err := d.readHead(ctx)
		if err != nil {
			return false, err
		}
		if err := d.sameID(h); err != nil {
			return false, err
		}
		done, err := d.txn(ctx, d.sameFleet(h), op)
		return err == nil && done.Succeeded, err
	})
	if err != nil {
		return fmt.Errorf("placement rule %q: %w", pattern, err)
	}
	return nil
}

// PutLoad publishes the load of this pair for Options.LoadTTL. It has no effect if the pair is not registered.
func (d *Directory) PutLoad(ctx context.Context, l Load) error {
	if !(l.PublishRate >= 0) || math.IsInf(l.PublishRate, 1) {
		return fmt.Errorf("%w: publish rate %v", ErrInvalid, l.PublishRate)
	}
	if err := acquire(ctx, d.loading); err != nil {
		return err
	}
	defer func() { <-d.loading }()
	put := func() error {
		registered := clientv3.Compare(clientv3.CreateRevision(d.key(dirPairs, d.opts.Pair)), ">", 0)
		put := clientv3.OpPut(d.key(dirLoad, d.opts.Pair), encode(l), clientv3.WithLease(d.lease))
		_, err := d.txn(ctx, []clientv3.Cmp{registered}, put)
		return err
	}
	if d.lease != 0 {
		err := d.keepAlive(ctx)
		if err == nil {
			err = put()
		}
		if err == nil || !errors.Is(err, rpctypes.ErrLeaseNotFound) {
			return err
		}
		d.lease = 0
	}
	limited, cancel := context.WithTimeout(ctx, d.opts.RequestTimeout)
	defer cancel()
	granted, err := d.client.Grant(limited, int64((d.opts.LoadTTL+time.Second-1)/time.Second))
	if err != nil {
		return fmt.Errorf("%w: grant a lease: %w", ErrUnavailable, err)
	}
	d.lease = granted.ID
	return put()
}

func (d *Directory) keepAlive(ctx context.Context) error {
	limited, cancel := context.WithTimeout(ctx, d.opts.RequestTimeout)
	defer cancel()
	if _, err := d.client.KeepAliveOnce(limited, d.lease); err != nil {
		return fmt.Errorf("%w: renew the lease: %w", ErrUnavailable, err)
	}
	return nil
}
