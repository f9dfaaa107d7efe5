// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// Queues lists all queues of this pair, with their ownership epochs. Epoch 0 means that the queue has none.
//
// It must return an error if this node is not the active, and otherwise all queues that were committed before the
// call. Before it lists the queues, it must verify that this node is still the active, for example by committing a
// record.
type Queues func(ctx context.Context) (iter.Seq2[string, uint64], error)

// Report describes the changes of the directory by Reconcile, Rebuild or Join.
type Report struct {
	Added, Updated, Removed int
	// Epochs are the epochs in the directory of the queues that Queues returned with epoch 0.
	Epochs map[string]uint64
	// Conflicts are queues of this pair that are assigned to other pairs, sorted by name.
	Conflicts []Conflict
	// Malformed are entries that could not be decoded, each a *ValueError, sorted by name.
	Malformed []error
	// Waiting are the pairs that have not contributed to the rebuild, sorted by name. Only Rebuild sets it. If it is empty
	// after Rebuild, no rebuild is in progress.
	Waiting []string
}

// Reconcile adapts the entries of this pair to its queues: it adds missing entries, updates entries with an older
// epoch, and deletes entries and placement groups without queues. It reports queues that are assigned to other pairs,
// and does not change their entries.
//
// inProgress reports whether the creation of a queue is in progress: from before its call of Assign until the queue
// is committed or the creation has failed. The entry of such a queue remains.
//
// Another pair can assign a name to this pair. While this pair has not claimed the entry, the first call of Reconcile
// retains it, so that the client has time to create the queue. The second call deletes it.
//
// The errors are among those of Assign.
func (d *Directory) Reconcile(ctx context.Context, queues Queues, inProgress func(queue string) bool) (Report, error) {
	if err := acquire(ctx, d.reconciling); err != nil {
		return Report{}, err
	}
	defer func() { <-d.reconciling }()
	ok := func(h head, k known) error {
		if k.Term == 0 {
			return ErrNotActive
		}
		return d.check(ctx, h, k)
	}
	report, err := d.reconcile(ctx, queues, inProgress, ok, nil, false)
	if err != nil {
		return report, fmt.Errorf("reconcile the directory: %w", err)
	}
	return report, nil
}

// reconcile implements Reconcile and Rebuild. d.reconciling is held.
//
// The order of the reads matters: first the entries, then the creations in progress, then the queues. A queue that is
// created concurrently either changes its entry after the first read, or is in progress, or is in the list of queues.
func (d *Directory) reconcile(
	ctx context.Context, queues Queues, inProgress func(string) bool, ok usable, guard []clientv3.Cmp, rebuild bool,
) (Report, error) {
	k := d.known()
	h, _, err := d.readHead(ctx)
	if err != nil {
		return Report{}, err
	}
	if err := ok(h, k); err != nil {
		return Report{}, err
	}
	groups, err := d.groupsOf(ctx)
	if err != nil {
		return Report{}, err
	}
	all, malformed, err := d.entries(ctx)
	if err != nil {
		return Report{}, err
	}
	for name, e := range all {
		if e.Group != "" && e.Pair == d.opts.Pair {
			delete(groups, e.Group)
		}
		if e.Pair == d.opts.Pair && inProgress != nil && inProgress(name) {
			delete(all, name) // not a candidate for deletion
		}
	}
	r := reconciler{d: d, own: map[string]uint64{}, old: all, term: k.Term, rebuild: rebuild}
	listed, err := queues(ctx)
	if err != nil {
		return Report{}, fmt.Errorf("list queues: %w", err)
	}
	for name, epoch := range listed {
		r.own[name] = epoch
	}
	r.unclaimed, d.unclaimed = d.unclaimed, map[string]string{}
	err = d.apply(ctx, r.names(malformed), ok, guard, r.decide, r.written)
	r.report.Malformed = errorsByName(malformed)
	if err == nil && len(malformed) == 0 {
		err = d.removeGroups(ctx, h, groups)
	}
	return r.finish(), err
}

func errorsByName(malformed map[string]error) (out []error) {
	for _, name := range slices.Sorted(maps.Keys(malformed)) {
		out = append(out, malformed[name])
	}
	return out
}

// reconciler decides about the entries of the queues of this pair.
type reconciler struct {
	d         *Directory
	own       map[string]uint64 // queues of this pair
	old       map[string]stored // entries before the queues were listed
	unclaimed map[string]string // unclaimed entries without a queue in the previous call
	term      uint64
	rebuild   bool
	newer     bool // another node has claimed an entry in a later term
	conflicts map[string]Conflict
	report    Report
}

// names clears the conflicts and the epochs, and returns the queues with entries that may need a change.
func (r *reconciler) names(malformed map[string]error) []string {
	r.conflicts = map[string]Conflict{}
	r.report.Epochs = map[string]uint64{}
	var names []string
	for name, epoch := range r.own {
		e, found := r.old[name]
		if malformed[name] == nil && (!found || epoch == 0 || e.Pair != r.d.opts.Pair || e.Epoch != epoch) {
			names = append(names, name)
		}
	}
	for name, e := range r.old {
		if _, exists := r.own[name]; !exists && e.Pair == r.d.opts.Pair {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

func (r *reconciler) decide(name string, old stored) (change, entryValue) {
	delete(r.conflicts, name)
	epoch, exists := r.own[name]
	switch {
	case !exists:
		return r.decideRemoval(name, old), entryValue{}
	case old.raw == "":
		return write, entryValue{Pair: r.d.opts.Pair, Epoch: epoch, Term: r.term, Group: Tag(name)}
	case old.Pair == r.d.opts.Pair && epoch == 0:
		r.report.Epochs[name] = old.Epoch
		return keep, entryValue{}
	case old.Pair == r.d.opts.Pair && epoch <= old.Epoch:
		return keep, entryValue{}
	case old.Pair == r.d.opts.Pair, r.rebuild && epoch > old.Epoch:
		v := old.entryValue
		v.Pair, v.Epoch, v.Term = r.d.opts.Pair, epoch, r.term
		return write, v
	}
	if moving := r.d.opts.Moving; moving != nil && epoch != 0 && moving(name) {
		return keep, entryValue{} // FinishMove has changed the entry, or will change it
	}
	r.conflicts[name] = Conflict{Queue: name, Epoch: epoch, Pair: old.Pair, PairEpoch: old.Epoch}
	return keep, entryValue{}
}

// decideRemoval decides about an entry of this pair without a queue. It records the entry if it is unclaimed, so that
// the next call can delete it, or if an active in a later term has claimed it.
func (r *reconciler) decideRemoval(name string, old stored) change {
	switch {
	case old.raw == "" || old.raw != r.old[name].raw:
		return keep
	case old.Term > r.term:
		r.newer = true
		return keep
	case old.Term == 0 && !r.rebuild && r.unclaimed[name] != old.raw:
		r.d.unclaimed[name] = old.raw
		return keep
	}
	return remove
}

func (r *reconciler) written(name string, c change, v entryValue) {
	switch {
	case c == remove:
		r.report.Removed++
	case r.own[name] == 0:
		r.report.Epochs[name] = v.Epoch
		r.report.Added++
	case r.old[name].raw == "":
		r.report.Added++
	default:
		r.report.Updated++
	}
}

func (r *reconciler) finish() Report {
	for _, name := range slices.Sorted(maps.Keys(r.conflicts)) {
		r.report.Conflicts = append(r.report.Conflicts, r.conflicts[name])
	}
	if r.newer {
		r.d.log.Info("directory has entries of a later active of this pair")
	}
	return r.report
}

// groupsOf returns the mod revisions of the placement groups of this pair, by name.
func (d *Directory) groupsOf(ctx context.Context) (map[string]int64, error) {
	groups := map[string]int64{}
	_, err := d.list(ctx, dirGroups, func(kv *mvccpb.KeyValue) {
		if g, err := decodeGroup(kv.Value); err == nil && g.Pair == d.opts.Pair {
			groups[strings.TrimPrefix(string(kv.Key), d.prefix+dirGroups)] = kv.ModRevision
		}
	})
	if err != nil {
		return nil, fmt.Errorf("list groups: %w", err)
	}
	return groups, nil
}

// removeGroups deletes placement groups without queues. groups contains their mod revisions, which were read before the
// entries. Each new entry of a group writes the group, so that removeGroups does not delete it.
func (d *Directory) removeGroups(ctx context.Context, h head, groups map[string]int64) error {
	for name, revision := range groups {
		key := d.key(dirGroups, name)
		cmps := append(d.sameFleet(h), clientv3.Compare(clientv3.ModRevision(key), "=", revision))
		if _, err := d.txn(ctx, cmps, clientv3.OpDelete(key)); err != nil && !errors.Is(err, ErrUnavailable) {
			return err
		} else if err != nil {
			return fmt.Errorf("delete group %q: %w", name, err)
		}
	}
	return nil
}
