// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// Leave ends the registration of this pair: it deletes the pair, its load, its entries and its placement groups. If
// no other pair is registered, it deletes the directory with all entries. Then the caller commits the end of the
// membership in the log (txn.FleetLeave), in the same term.
//
// Leave calls queues at most twice. As for Rebuild, queues must wait for creations in progress before it lists the
// queues. Before the second call, assignments to this pair stop. If queues lists any queue while another pair is
// registered, the error wraps ErrOwnsQueues, and the pair remains registered. The other errors are those of Assign,
// and ErrPairExists if another pair has the same name. If etcd does not respond, Leave may have been executed in
// part. In this case, no queues are assigned to the pair until Leave is called again, or SetState, Join or Rebuild
// ends the attempt.
//
// A pair cannot leave during a move from or to it: the error wraps ErrMoving.
//
// After a crash of the node between Leave and the commit, the log still contains the membership, but the directory
// lacks the pair. In this state, the pair cannot create queues. The operator either requests Leave again, or Rebuild
// to remain in the fleet.
//
// If the fleet of this pair has no directory, or Forget has removed this pair, Leave deletes nothing. If the pair has
// queues and its fleet has no directory, the error wraps ErrLost. Either the directory was lost, in which case the
// fleet may have other pairs, or Leave has deleted it before a crash. If the pair has queues and was removed, the
// error wraps ErrForgotten. After ErrLost, the caller may commit the end of the membership if an operator confirms
// that no other pair exists.
//
// If this pair is not a member, Leave deletes the registration that an interrupted Join, or the restoration of an
// older directory, has left.
func (d *Directory) Leave(ctx context.Context, queues Queues) error {
	if err := acquire(ctx, d.reconciling); err != nil {
		return err
	}
	defer func() { <-d.reconciling }()
	l := leave{d: d, queues: queues, term: d.opts.State().Term}
	if err := l.run(ctx); err != nil {
		return fmt.Errorf("leave the fleet: %w", err)
	}
	return nil
}

// leave is a call of Leave. d.reconciling is held.
type leave struct {
	d      *Directory
	queues Queues
	term   uint64 // the term of this node at the beginning
	left   bool   // nothing remains to be deleted
	// deleting is set when the deletion of the directory was requested. The outcome may be unknown.
	deleting bool
	// marked is the registration of this pair in the state leaving; raw "" if the pair was not registered.
	marked registration
	// previous is the state that cancel restores: the state before the call, or StateDraining if an earlier call has not
	// finished.
	previous State
}

func (l *leave) run(ctx context.Context) error {
	// Listed before the first change, so that a node that was replaced fails, and assignments to a pair with queues do
	// not stop.
	owns, err := l.ownsQueues(ctx)
	if err != nil {
		return err
	}
	err = l.d.retry(ctx, func() (bool, error) { return l.begin(ctx, owns) })
	if l.left {
		return err
	}
	if err == nil {
		err = l.remove(ctx)
	}
	if err != nil {
		return errors.Join(err, l.cancel(context.WithoutCancel(ctx)))
	}
	return nil
}

// remove deletes everything of this pair after assignments to it have stopped.
func (l *leave) remove(ctx context.Context) error {
	owns, err := l.ownsQueues(ctx)
	switch {
	case err != nil:
		return err
	case owns:
		return ErrOwnsQueues
	}
	// From here on, no move from or to this pair begins.
	if err := l.d.checkMovesOf(ctx, l.guard()); err != nil {
		return err
	}
	if err := l.removeEntries(ctx); err != nil {
		return err
	}
	return l.d.retry(ctx, func() (bool, error) { return l.finish(ctx) })
}

// ownsQueues reports whether this pair owns queues of the fleet.
func (l *leave) ownsQueues(ctx context.Context) (owns bool, _ error) {
	listed, err := l.queues(ctx)
	if err != nil {
		return false, fmt.Errorf("list queues: %w", err)
	}
	for range listed {
		owns = true
	}
	// The state is read after the list, which proves that this node was the active, and had applied its log.
	return owns && l.d.opts.State().FleetID != "", nil
}

// registration is a registered pair.
type registration struct {
	Member
	raw      string // "": not registered
	revision int64  // mod revision
}

// same compares a registration, including its mod revision: an earlier registration may have had the same value.
func (r *registration) same(key string) []clientv3.Cmp {
	if r.raw == "" {
		return []clientv3.Cmp{same(key, "")}
	}
	return []clientv3.Cmp{same(key, r.raw), clientv3.Compare(clientv3.ModRevision(key), "=", r.revision)}
}

// registrations reads the registration of this pair, and the name of another registered pair; "" for none.
func (d *Directory) registrations(ctx context.Context) (h head, own registration, other string, _ error) {
	h, resp, err := d.readHead(ctx, clientv3.OpGet(d.prefix+dirPairs, clientv3.WithPrefix()))
	if err != nil {
		return h, own, "", err
	}
	for _, kv := range resp.Responses[2].GetResponseRange().Kvs {
		name := strings.TrimPrefix(string(kv.Key), d.prefix+dirPairs)
		if name != d.opts.Pair {
			other = name
			continue
		}
		m, err := decodeMember(name, kv.Value)
		switch {
		case err != nil:
			return h, own, "", &ValueError{string(kv.Key), err}
		case m.ID != d.opts.PairID:
			return h, own, "", fmt.Errorf("%w: pair %s has the ID %s", ErrPairExists, name, m.ID)
		}
		own = registration{m, string(kv.Value), kv.ModRevision}
	}
	return h, own, other, nil
}

// usable verifies the directory. A pair that is not a member may delete its registration from any directory.
func (l *leave) usable(ctx context.Context) usable {
	return func(h head, k known) error {
		switch {
		case k.Term == 0:
			return ErrNotActive
		case k.FleetID == "":
			return nil
		}
		return l.d.check(ctx, h, k)
	}
}

// isGone reports whether the fleet of this pair has no directory.
func isGone(h head, k known) bool { return h.raw == "" || k.FleetID != "" && h.fleet.ID != k.FleetID }

// begin writes the state leaving, so that assignments to this pair stop. If no other pair is registered and no rebuild
// is in progress, it deletes the directory instead. In other cases, the error is ErrOwnsQueues if owns is set.
func (l *leave) begin(ctx context.Context, owns bool) (done bool, _ error) {
	d, k := l.d, l.d.known()
	h, own, other, err := d.registrations(ctx)
	if err != nil {
		return false, err
	}
	gone := isGone(h, k) || k.forgotten
	if l.left = k.Term != 0 && gone && (!owns || l.deleting); l.left {
		return true, nil
	}
	if err := l.usable(ctx)(h, k); err != nil {
		return false, err
	}
	switch {
	case other == "" && !h.fleet.Rebuilding:
		l.left, err = l.removeAll(ctx, h, own)
		return l.left, err
	case own.State != StateLeaving:
		l.previous = own.State
	case l.previous == "": // the state is that of an earlier call
		l.previous = StateDraining
	}
	switch l.marked = own; {
	case owns:
		return false, ErrOwnsQueues
	case own.raw == "":
		return true, nil
	}
	return l.mark(ctx, h, own)
}

// mark writes the state leaving.
func (l *leave) mark(ctx context.Context, h head, own registration) (done bool, _ error) {
	key := l.d.key(dirPairs, l.d.opts.Pair)
	l.marked.State = StateLeaving
	l.marked.raw = encode(l.marked.Member)
	resp, err := l.d.txn(ctx, append(l.d.sameFleet(h), own.same(key)...), clientv3.OpPut(key, l.marked.raw))
	if err != nil || !resp.Succeeded {
		return false, err
	}
	l.marked.revision = resp.Header.Revision
	return true, nil
}

// guard compares the registration: the attempt may be canceled at any time.
func (l *leave) guard() []clientv3.Cmp { return l.marked.same(l.d.key(dirPairs, l.d.opts.Pair)) }

// removeAll deletes the directory, if the registration of this pair has not changed and no other pair is registered.
func (l *leave) removeAll(ctx context.Context, h head, own registration) (done bool, _ error) {
	d, key := l.d, l.d.key(dirPairs, l.d.opts.Pair)
	none := func(from, to string) clientv3.Cmp {
		return clientv3.Compare(clientv3.CreateRevision(from), "=", 0).WithRange(to)
	}
	l.deleting = true
	cmps := append(append(d.sameFleet(h), own.same(key)...),
		none(d.prefix+dirPairs, key), none(key+"\x00", clientv3.GetPrefixRangeEnd(d.prefix+dirPairs)))
	resp, err := d.txn(ctx, cmps, clientv3.OpDelete(d.prefix, clientv3.WithPrefix()))
	return err == nil && resp.Succeeded, err
}

// removeEntries deletes the entries and placement groups of this pair, which owns no queues.
func (l *leave) removeEntries(ctx context.Context) error {
	d := l.d
	h, _, err := d.readHead(ctx)
	if err != nil {
		return err
	}
	groups, err := d.groupsOf(ctx)
	if err != nil {
		return err
	}
	all, _, err := d.entries(ctx)
	if err != nil {
		return err
	}
	newer := false
	names := slices.DeleteFunc(slices.Sorted(maps.Keys(all)), func(name string) bool {
		return all[name].Pair != d.opts.Pair
	})
	err = d.apply(ctx, names, l.usable(ctx), l.guard(), func(_ string, old stored) (change, entryValue) {
		switch {
		case old.Pair != d.opts.Pair:
			return keep, entryValue{}
		case old.Term > l.term:
			newer = true
			return keep, entryValue{}
		}
		return remove, entryValue{}
	}, func(string, change, entryValue) {})
	if err == nil && newer {
		err = fmt.Errorf("%w: another node of the pair has assigned queues", ErrNotActive)
	}
	if err != nil {
		return err
	}
	return d.removeGroups(ctx, h, groups)
}

// finish deletes the directory if no other pair is registered and no rebuild is in progress. Otherwise, it deletes the
// registration of this pair.
func (l *leave) finish(ctx context.Context) (done bool, _ error) {
	d, k := l.d, l.d.known()
	h, own, other, err := d.registrations(ctx)
	switch {
	case err != nil:
		return false, err
	case isGone(h, k), own.raw == "" && l.marked.raw != "":
		return true, nil // by a previous attempt
	case own.revision != l.marked.revision:
		return false, fmt.Errorf("%w: pair %s was changed", ErrContention, d.opts.Pair)
	}
	if err := l.usable(ctx)(h, k); err != nil {
		return false, err
	}
	if other == "" && !h.fleet.Rebuilding {
		return l.removeAll(ctx, h, own)
	}
	cmps := append(d.sameFleet(h), l.guard()...)
	if other != "" { // of two pairs that leave, the second one deletes the directory
		cmps = append(cmps, clientv3.Compare(clientv3.CreateRevision(d.key(dirPairs, other)), ">", 0))
	}
	resp, err := d.txn(ctx, cmps, clientv3.OpDelete(d.key(dirPairs, d.opts.Pair)),
		clientv3.OpDelete(d.key(dirLoad, d.opts.Pair)), clientv3.OpDelete(d.key(dirRebuilt, d.opts.Pair)))
	return err == nil && resp.Succeeded, err
}

// cancel restores the state of the registration, unless it was changed.
func (l *leave) cancel(ctx context.Context) error {
	if l.marked.State != StateLeaving {
		return nil
	}
	restored := l.marked.Member
	restored.State = l.previous
	_, err := l.d.txn(ctx, l.guard(), clientv3.OpPut(l.d.key(dirPairs, restored.Name), encode(restored)))
	return err
}
