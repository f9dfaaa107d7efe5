// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// Reclaim assigns the queues of a move to the source again, and returns their new ownership epoch. This pair must be
// the source. The target m.To must be a pair that Forget has removed; it may have taken the queues. m.Queues are the
// fenced queues. The caller then removes the fence. Reclaim can be called again.
//
// If a third pair, or a new pair with the name of the target, owns one of the names, the target had taken the queues.
// Reclaim then returns an error that wraps a *ConflictError, and changes nothing. The error wraps ErrMoving if
// another move contains one of the queues, and ErrLive if the target is not removed. The other errors are those of
// Assign.
func (d *Directory) Reclaim(ctx context.Context, m Move) (epoch uint64, _ error) {
	if err := checkMoveQueues(m.Queues); err != nil {
		return 0, err
	}
	if err := acquire(ctx, d.assigning); err != nil {
		return 0, err
	}
	defer func() { <-d.assigning }()
	err := d.retry(ctx, func() (done bool, err error) {
		epoch, done, err = d.tryReclaim(ctx, m)
		return done, err
	})
	if err != nil {
		return 0, fmt.Errorf("reclaim the queues of move %d: %w", m.Epoch, err)
	}
	return epoch, nil
}

func (d *Directory) tryReclaim(ctx context.Context, m Move) (epoch uint64, done bool, _ error) {
	k := d.known()
	if k.Term == 0 {
		return 0, false, ErrNotActive
	}
	ops := d.reclaimOps(m)
	h, resp, err := d.readHead(ctx, ops...)
	if err != nil {
		return 0, false, err
	}
	if err := d.check(ctx, h, k); err != nil {
		return 0, false, err
	}
	kvs := func(i int) []*mvccpb.KeyValue { return resp.Responses[2+i].GetResponseRange().Kvs }
	if len(kvs(1)) == 0 {
		return 0, false, fmt.Errorf("%w: %s is not registered", ErrNotMember, d.opts.Pair)
	}
	f := finish{d: d, m: Move{Epoch: h.counter + 1, From: m.To}, term: k.Term, groups: map[string]bool{}}
	removal, err := d.removalOf(m, kvs(2), kvs(3))
	if err != nil {
		return 0, false, err
	}
	f.cmps = append(d.sameHead(h), same(string(kvs(1)[0].Key), string(kvs(1)[0].Value)), removal)
	if err := f.endMove(m, kvs(0)); err != nil {
		return 0, false, err
	}
	for i, name := range m.Queues {
		old := stored{}
		if entry := kvs(4 + i); len(entry) > 0 {
			if old, err = d.decodeStored(entry[0]); err != nil {
				return 0, false, err
			}
		}
		if old.Pair == m.To && old.Epoch > m.Epoch { // of another pair with the name of the target
			f.conflicts = append(f.conflicts, Conflict{name, m.Epoch, old.Pair, old.Epoch})
			continue
		}
		f.entry(name, old)
	}
	if len(f.conflicts) > 0 {
		return 0, false, &ConflictError{f.conflicts}
	}
	if err := f.moveGroups(ctx); err != nil {
		return 0, false, err
	}
	result, err := d.txn(ctx, f.cmps, append(f.ops, d.putCounter(f.m.Epoch))...)
	if err != nil || !result.Succeeded {
		return 0, false, err
	}
	d.see(head{fleet: h.fleet, raw: h.raw, counter: f.m.Epoch})
	return f.m.Epoch, true, nil
}

// reclaimOps returns the reads of a call of Reclaim.
func (d *Directory) reclaimOps(m Move) []clientv3.Op {
	ops := []clientv3.Op{
		clientv3.OpGet(d.prefix+dirMoves, clientv3.WithPrefix()), clientv3.OpGet(d.key(dirPairs, d.opts.Pair)),
		clientv3.OpGet(d.key(dirPairs, m.To)), clientv3.OpGet(d.prefix+dirForgotten, clientv3.WithPrefix()),
	}
	for _, name := range m.Queues {
		ops = append(ops, clientv3.OpGet(d.key(dirQueues, name)))
	}
	return ops
}

// endMove adds the deletion of the intent of a move, if it exists, to the transaction. If another move contains one of
// the queues, endMove returns an error that wraps ErrMoving. The lost target has then begun to move them to another
// pair, which decides about the queues first.
func (f *finish) endMove(m Move, intents []*mvccpb.KeyValue) error {
	for _, kv := range intents {
		other, err := decodeMove(strings.TrimPrefix(string(kv.Key), f.d.prefix+dirMoves), kv.Value)
		switch {
		case err != nil:
			return &ValueError{string(kv.Key), err}
		case other.Epoch == m.Epoch:
			f.cmps = append(f.cmps, same(string(kv.Key), string(kv.Value)))
			f.ops = append(f.ops, clientv3.OpDelete(string(kv.Key)))
		case slices.ContainsFunc(other.Queues, func(name string) bool { return slices.Contains(m.Queues, name) }):
			return fmt.Errorf("%w: move %d to pair %s", ErrMoving, other.Epoch, other.To)
		}
	}
	return nil
}

// removalOf returns a comparison that fails if the record of the removal of the target changes. If the target was not
// removed, the error wraps ErrLive. registered contains the registered pair with the name of the target, if any.
// forgotten contains the records of removed pairs.
func (d *Directory) removalOf(m Move, registered, forgotten []*mvccpb.KeyValue) (c clientv3.Cmp, _ error) {
	named := false
	if len(registered) > 0 {
		other, err := decodeMember(m.To, registered[0].Value)
		if err != nil {
			return c, &ValueError{string(registered[0].Key), err}
		}
		named = other.State != StateForgotten
	}
	for _, kv := range forgotten {
		v, err := decodeForgotten(kv.Value)
		if err == nil && v.Pair == m.To && (!named || v.Epoch >= m.Epoch) {
			return same(string(kv.Key), string(kv.Value)), nil
		}
	}
	return c, fmt.Errorf("%w: %s was not removed", ErrLive, m.To)
}
