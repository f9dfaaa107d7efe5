// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strconv"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// Rebuild writes the registration and the entries of this pair to a lost or restored directory. An operator starts it
// at each pair. The first call stops all assignments; they are possible again when all pairs have contributed.
//
// pairs are the names of all pairs of the fleet, as confirmed by the operator. Registered pairs are added, except
// those that have not finished joining or are being removed. If the operator omits a pair, its queue names may be
// assigned to other pairs. Report.Waiting contains the pairs that have not contributed yet. For the limits of a
// rebuild, see the package comment.
//
// Of two pairs with entries for the same name, the pair with the higher ownership epoch keeps the entry. The other
// pair reports a conflict, and must call Rebuild again after the first one has contributed.
//
// queues is called after assignments have stopped. It must wait for creations in progress before it lists the queues.
// If the directory is neither lost nor restored nor being rebuilt, Rebuild writes the registration and reconciles the
// entries of this pair. m is the description of this pair. Its name, ID and state are ignored: the pair keeps the
// state of its registration, and becomes open if it is leaving or not registered.
func (d *Directory) Rebuild(ctx context.Context, m Member, pairs []string, queues Queues) (Report, error) {
	m.Name, m.ID, m.State = d.opts.Pair, d.opts.PairID, StateOpen
	if err := checkMember(m); err != nil {
		return Report{}, err
	}
	for _, name := range pairs {
		if err := CheckPair(name); err != nil {
			return Report{}, err
		}
	}
	if err := acquire(ctx, d.reconciling); err != nil {
		return Report{}, err
	}
	defer func() { <-d.reconciling }()
	report, err := d.rebuild(ctx, m, pairs, queues)
	if err != nil {
		return report, fmt.Errorf("rebuild the directory: %w", err)
	}
	return report, nil
}

func (d *Directory) rebuild(ctx context.Context, m Member, pairs []string, queues Queues) (Report, error) {
	started, err := d.startRebuild(ctx)
	if err != nil {
		return Report{}, err
	}
	ok := func(h head, k known) error {
		switch {
		case k.Term == 0:
			return ErrNotActive
		case h.fleet != started:
			return fmt.Errorf("%w: another rebuild was started or finished", ErrContention)
		case !started.Rebuilding:
			return d.check(ctx, h, k)
		}
		return nil
	}
	if _, err := d.register(ctx, ok, m); err != nil {
		return Report{}, err
	}
	list := func(ctx context.Context) (iter.Seq2[string, uint64], error) {
		listed, err := queues(ctx)
		if err != nil {
			return nil, err
		}
		own := maps.Collect(listed)
		if err := d.raiseCounter(ctx, ok, own); err != nil {
			return nil, err
		}
		return maps.All(own), nil
	}
	report, err := d.reconcile(ctx, list, nil, ok, nil, true)
	if err != nil || !started.Rebuilding {
		return report, err
	}
	if len(report.Malformed) > 0 { // these names may be queues of this pair
		return report, errors.Join(report.Malformed...)
	}
	report.Waiting, err = d.finishRebuild(ctx, ok, started, pairs, report.Conflicts)
	return report, err
}

// startRebuild stops assignments if the directory is lost or restored, and returns the current fleet.
func (d *Directory) startRebuild(ctx context.Context) (started fleetValue, _ error) {
	err := d.retry(ctx, func() (bool, error) {
		k := d.known()
		switch {
		case k.Term == 0:
			return false, ErrNotActive
		case k.FleetID == "":
			return false, ErrNotMember
		}
		h, _, err := d.readHead(ctx)
		if err != nil {
			return false, err
		}
		started = h.fleet
		switch err := d.check(ctx, h, k); {
		case err == nil, errors.Is(err, ErrRebuilding):
			return true, nil
		case errors.Is(err, ErrRestored):
			return false, nil // check has stopped assignments, unless another change was concurrent
		case h.raw != "":
			return false, err // another fleet
		}
		started = fleetValue{ID: k.FleetID, Rebuild: 1, Rebuilding: true}
		if k.seenIn.ID == k.FleetID {
			started.Rebuild = k.seenIn.Rebuild + 1
		}
		resp, err := d.txn(ctx, d.sameFleet(h), clientv3.OpPut(d.prefix+keyFleet, encode(started)))
		if err == nil && resp.Succeeded {
			d.log.Warn("started the rebuild of a lost directory")
		}
		return err == nil && resp.Succeeded, err
	})
	return started, err
}

// raiseCounter raises the counter to the highest known epoch.
func (d *Directory) raiseCounter(ctx context.Context, ok usable, own map[string]uint64) error {
	return d.retry(ctx, func() (bool, error) {
		k := d.known()
		highest := max(k.MaxEpoch, k.maxEpoch(k.seenIn))
		for _, epoch := range own {
			highest = max(highest, epoch)
		}
		h, _, err := d.readHead(ctx)
		if err != nil {
			return false, err
		}
		if err := ok(h, k); err != nil {
			return false, err
		}
		if h.rawCtr != "" && h.counter >= highest {
			return true, nil
		}
		resp, err := d.txn(ctx, d.sameHead(h), d.putCounter(highest))
		return err == nil && resp.Succeeded, err
	})
}

// finishRebuild records the contribution of this pair, unless it has a conflict with a missing pair, and permits
// assignments if no pair is missing. It returns the missing pairs.
func (d *Directory) finishRebuild(
	ctx context.Context, ok usable, started fleetValue, pairs []string, conflicts []Conflict,
) (waiting []string, _ error) {
	number := strconv.FormatUint(started.Rebuild, 10)
	finished := started
	finished.Rebuilding = false
	err := d.retry(ctx, func() (bool, error) {
		k := d.known()
		h, resp, err := d.readHead(ctx,
			clientv3.OpGet(d.prefix+dirRebuilt, clientv3.WithPrefix()),
			clientv3.OpGet(d.prefix+dirPairs, clientv3.WithPrefix()))
		if err != nil {
			return false, err
		}
		if h.fleet == finished {
			waiting = nil // by a previous attempt, or by another pair
			return true, nil
		}
		if err := ok(h, k); err != nil {
			return false, err
		}
		waiting = d.missing(resp, number, pairs)
		var ops []clientv3.Op
		if slices.ContainsFunc(conflicts, func(c Conflict) bool { return slices.Contains(waiting, c.Pair) }) {
			// The other pair may delete its entry. This pair must then write its own.
			waiting = slices.Sorted(slices.Values(append(waiting, d.opts.Pair)))
		} else {
			ops = append(ops, clientv3.OpPut(d.key(dirRebuilt, d.opts.Pair), number))
		}
		if len(waiting) == 0 {
			ops = append(ops, clientv3.OpPut(d.prefix+keyFleet, encode(finished)))
		}
		done, err := d.txn(ctx, d.sameFleet(h), ops...)
		return err == nil && done.Succeeded, err
	})
	return waiting, err
}

// missing returns the other pairs that have not contributed to a rebuild. A pair that is not registered, or has the
// state joining or forgotten, counts only if pairs contains its name.
func (d *Directory) missing(resp *clientv3.TxnResponse, number string, pairs []string) []string {
	missing := map[string]bool{}
	for _, name := range pairs {
		missing[name] = true
	}
	for _, kv := range resp.Responses[3].GetResponseRange().Kvs {
		name := strings.TrimPrefix(string(kv.Key), d.prefix+dirPairs)
		other, err := decodeMember(name, kv.Value)
		if err != nil || other.State != StateJoining && other.State != StateForgotten {
			missing[name] = true
		}
	}
	for _, kv := range resp.Responses[2].GetResponseRange().Kvs {
		if string(kv.Value) == number {
			delete(missing, strings.TrimPrefix(string(kv.Key), d.prefix+dirRebuilt))
		}
	}
	delete(missing, d.opts.Pair)
	return slices.Sorted(maps.Keys(missing))
}
