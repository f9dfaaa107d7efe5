// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/google/uuid"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// Join registers this pair, and assigns its existing queues to it. The first pair creates the fleet. Join returns the
// ID of the fleet and, in Report.Epochs, the epochs of the queues. The caller then commits the membership in the log,
// with the ID and a new epoch above those in Report.Epochs (NewEpoch). After that, it calls Reconcile for queues that
// were created in the meantime. m.Name, m.ID and m.State are ignored: Options contains the name and the ID. The calls
// of Join, Rebuild and Leave, and the commits after them, must not overlap.
//
// If another pair owns one of the names, the error wraps a *ConflictError, and Join removes the registration unless
// the pair had joined before. The error wraps ErrPairExists if another pair has the same name, or if this pair is
// registered under another name. If Join fails for another reason, the pair may be registered in part; Join can be
// called again.
func (d *Directory) Join(ctx context.Context, m Member, queues Queues) (fleetID string, _ Report, _ error) {
	m.Name, m.ID, m.State = d.opts.Pair, d.opts.PairID, StateJoining
	if err := checkMember(m); err != nil {
		return "", Report{}, err
	}
	if err := acquire(ctx, d.reconciling); err != nil {
		return "", Report{}, err
	}
	defer func() { <-d.reconciling }()
	fleetID, err := d.createFleet(ctx)
	if err != nil {
		return "", Report{}, fmt.Errorf("join the fleet: %w", err)
	}
	ok := d.joined(ctx, fleetID)
	m, err = d.register(ctx, ok, m)
	if err != nil {
		return "", Report{}, fmt.Errorf("join the fleet: %w", err)
	}
	report, err := d.assignExisting(ctx, ok, m, queues)
	if err == nil && m.State == StateJoining {
		err = d.open(ctx, ok, m)
	}
	if err != nil {
		return "", Report{}, fmt.Errorf("join the fleet: %w", err)
	}
	return fleetID, report, nil
}

// NewEpoch returns a new ownership epoch above least, for the join of this pair. fleetID is the result of Join. The
// errors are among those of Assign.
func (d *Directory) NewEpoch(ctx context.Context, fleetID string, least uint64) (epoch uint64, _ error) {
	ok := d.joined(ctx, fleetID)
	err := d.retry(ctx, func() (bool, error) {
		k := d.known()
		h, _, err := d.readHead(ctx)
		if err != nil {
			return false, err
		}
		if err := ok(h, k); err != nil {
			return false, err
		}
		epoch = max(h.counter, least) + 1
		resp, err := d.txn(ctx, d.sameHead(h), d.putCounter(epoch))
		if err != nil || !resp.Succeeded {
			return false, err
		}
		d.see(head{fleet: h.fleet, raw: h.raw, counter: epoch})
		return true, nil
	})
	if err != nil {
		return 0, fmt.Errorf("new epoch: %w", err)
	}
	return epoch, nil
}

// createFleet returns the ID of the fleet. If the directory contains no fleet and this pair belongs to none, it creates
// one.
func (d *Directory) createFleet(ctx context.Context) (id string, _ error) {
	err := d.retry(ctx, func() (bool, error) {
		k := d.known()
		if k.Term == 0 {
			return false, ErrNotActive
		}
		h, _, err := d.readHead(ctx)
		if err != nil {
			return false, err
		}
		if h.raw != "" || k.FleetID != "" {
			id = h.fleet.ID
			return true, d.check(ctx, h, k.joining(id))
		}
		created := fleetValue{ID: uuid.NewString()}
		resp, err := d.txn(ctx, d.sameHead(h), clientv3.OpPut(d.prefix+keyFleet, encode(created)),
			d.putCounter(max(h.counter, k.MaxEpoch)))
		id = created.ID
		return err == nil && resp.Succeeded, err
	})
	return id, err
}

// joining returns the state of a pair that joins a fleet. Epochs in its log are from another fleet.
func (k known) joining(fleetID string) known {
	if k.FleetID == "" {
		k.FleetID, k.MaxEpoch = fleetID, 0
	}
	return k
}

// joined returns a check of a directory, before the fleet's ID is in the log of this pair.
func (d *Directory) joined(ctx context.Context, fleetID string) usable {
	return func(h head, k known) error {
		k = k.joining(fleetID)
		if k.Term == 0 {
			return ErrNotActive
		}
		return d.check(ctx, h, k)
	}
}

// register writes the pair, unless another one has its name. It returns the pair with its current state: the state of
// a registered pair does not change, except that it ends an attempt to leave.
func (d *Directory) register(ctx context.Context, ok usable, m Member) (written Member, _ error) {
	key := d.key(dirPairs, m.Name)
	err := d.retry(ctx, func() (bool, error) {
		written = m
		k := d.known()
		h, resp, err := d.readHead(ctx, clientv3.OpGet(d.prefix+dirPairs, clientv3.WithPrefix()))
		if err != nil {
			return false, err
		}
		if err := ok(h, k); err != nil {
			return false, err
		}
		old := ""
		for _, kv := range resp.Responses[2].GetResponseRange().Kvs {
			name := strings.TrimPrefix(string(kv.Key), d.prefix+dirPairs)
			other, err := decodeMember(name, kv.Value)
			switch {
			case err != nil:
				return false, &ValueError{string(kv.Key), err}
			case name == m.Name && other.ID != m.ID:
				return false, fmt.Errorf("%w: pair %s has the ID %s", ErrPairExists, name, other.ID)
			case name != m.Name && other.ID == m.ID:
				return false, fmt.Errorf("%w: this pair is registered as %s", ErrPairExists, name)
			case name == m.Name:
				if old = string(kv.Value); other.State != StateLeaving {
					written.State = other.State
				}
			}
		}
		done, err := d.txn(ctx, append(d.sameFleet(h), same(key, old)), clientv3.OpPut(key, encode(written)))
		return err == nil && done.Succeeded, err
	})
	return written, err
}

// assignExisting assigns the queues of a pair that joins. If another pair owns one of them, it returns a
// *ConflictError, and deletes the registration, unless the pair had joined before.
func (d *Directory) assignExisting(ctx context.Context, ok usable, m Member, queues Queues) (Report, error) {
	listed, err := queues(ctx)
	if err != nil {
		return Report{}, fmt.Errorf("list queues: %w", err)
	}
	r := reconciler{d: d, own: maps.Collect(listed), term: d.opts.State().Term}
	for name := range r.own {
		if err := checkName("queue name", name); err != nil {
			return Report{}, err
		}
	}
	all, malformed, err := d.entries(ctx)
	if err != nil {
		return Report{}, err
	}
	if r.old = all; len(malformed) > 0 {
		return Report{}, errors.Join(errorsByName(malformed)...)
	}
	names := slices.DeleteFunc(r.names(nil), func(name string) bool {
		_, exists := r.own[name]
		return !exists
	})
	for name := range r.own { // most conflicts are found before the first write
		r.decide(name, all[name])
	}
	guard := []clientv3.Cmp{same(d.key(dirPairs, m.Name), encode(m))}
	if len(r.conflicts) == 0 {
		if err := d.raiseCounter(ctx, ok, r.own); err != nil {
			return Report{}, err
		}
		if err := d.apply(ctx, names, ok, guard, r.decide, r.written); err != nil {
			return Report{}, err
		}
	}
	report := r.finish()
	if len(report.Conflicts) == 0 {
		return report, nil
	}
	err = &ConflictError{report.Conflicts}
	if m.State == StateJoining {
		err = errors.Join(err, d.unregister(ctx, ok, m, guard))
	}
	return Report{}, err
}

// unregister deletes a pair that has not joined, and its entries.
func (d *Directory) unregister(
	ctx context.Context, ok usable, m Member, guard []clientv3.Cmp,
) error {
	all, _, err := d.entries(ctx)
	if err != nil {
		return err
	}
	names := slices.DeleteFunc(slices.Sorted(maps.Keys(all)), func(name string) bool { return all[name].Pair != m.Name })
	err = d.apply(ctx, names, ok, guard, func(_ string, old stored) (change, entryValue) {
		if old.Pair != m.Name {
			return keep, entryValue{}
		}
		return remove, entryValue{}
	}, func(string, change, entryValue) {})
	if err != nil {
		return err
	}
	_, err = d.txn(ctx, guard, clientv3.OpDelete(d.key(dirPairs, m.Name)))
	return err
}

// open makes a pair available for new queues.
func (d *Directory) open(ctx context.Context, ok usable, m Member) error {
	key := d.key(dirPairs, m.Name)
	return d.retry(ctx, func() (bool, error) {
		k := d.known()
		h, resp, err := d.readHead(ctx, clientv3.OpGet(key))
		if err != nil {
			return false, err
		}
		if err := ok(h, k); err != nil {
			return false, err
		}
		opened := m
		opened.State = StateOpen
		kvs := resp.Responses[2].GetResponseRange().Kvs
		switch {
		case len(kvs) == 0:
			return false, fmt.Errorf("%w: pair %s was deleted", ErrContention, m.Name)
		case string(kvs[0].Value) == encode(opened):
			return true, nil
		case string(kvs[0].Value) != encode(m):
			return false, fmt.Errorf("%w: pair %s was changed", ErrContention, m.Name)
		}
		done, err := d.txn(ctx, append(d.sameFleet(h), same(key, encode(m))), clientv3.OpPut(key, encode(opened)))
		return err == nil && done.Succeeded, err
	})
}
