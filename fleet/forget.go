// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

var (
	// ErrLive is returned by Forget if the pair publishes its load, and by Reclaim if the target was not removed.
	ErrLive = errors.New("pair is live")
	// ErrForgotten is returned if this pair, or the named one, was removed by Forget.
	ErrForgotten = errors.New("pair was removed from the fleet as lost")
)

// Forgotten is the result of Forget.
type Forgotten struct {
	// Queues is the number of entries that were deleted.
	Queues int
	// Moves are the epochs of the moves to the pair, in order. Their intents were deleted.
	Moves []uint64
	// Waiting are the epochs of the moves from the pair that have not ended, in order. The entries of their queues
	// remain, because a target may have taken the queues. The targets end these moves; then Forget must be called again.
	// The registration of the pair is deleted only if Waiting is empty.
	Waiting []uint64
}

// forgottenValue is the value of the key of a forgotten pair.
type forgottenValue struct {
	Pair string `json:"pair"`
	// Epoch is the last ownership epoch at the time of the removal. Another pair with the same name has higher epochs.
	Epoch     uint64   `json:"epoch,omitempty"`
	Addresses []string `json:"addresses,omitempty"`
}

func decodeForgotten(raw []byte) (v forgottenValue, err error) {
	if err = decode(raw, &v); err == nil {
		err = CheckPair(v.Pair)
	}
	return v, err
}

// Forget removes another pair, which is lost permanently, with its entries and placement groups. If moves from the
// pair have not ended (Forgotten.Waiting), the pair and the entries of these queues remain, and Forget must be called
// again later. It can also be called again after an error.
//
// During a rebuild, Rebuild then waits for the pair only if its argument pairs contains the name. The ID of the pair
// remains in the directory, so that the pair cannot change the directory again: it can neither create queues nor
// join. If the pair is started again, it serves the queues in its log until it has loaded the directory.
//
// For each move to the pair, the source assigns the fenced queues to itself again (Reclaim).
//
// The error wraps ErrLive if the pair publishes its load, and ErrInvalid if it is the pair of this node. It wraps
// ErrNotMember if the pair is not registered and has neither entries nor moves. The other errors are those of
// SetState.
func (d *Directory) Forget(ctx context.Context, pair string) (Forgotten, error) {
	if err := CheckPair(pair); err != nil {
		return Forgotten{}, err
	}
	if pair == d.opts.Pair {
		return Forgotten{}, fmt.Errorf("%w: pair %s is the pair of this node", ErrInvalid, pair)
	}
	f := forget{d: d, pair: pair, key: d.key(dirPairs, pair)}
	if err := f.run(ctx); err != nil {
		return f.result, fmt.Errorf("forget pair %s: %w", pair, err)
	}
	return f.result, nil
}

// forget is a call of Forget.
type forget struct {
	d         *Directory
	pair, key string
	raw       string // registration in the state forgotten; "" if the pair is not registered
	reserved  map[string]bool
	result    Forgotten
}

func (f *forget) run(ctx context.Context) error {
	if err := f.d.retry(ctx, func() (bool, error) { return f.mark(ctx) }); err != nil {
		return err
	}
	// From here on, no move from or to the pair begins, and no queue is assigned to it.
	if err := f.readMoves(ctx); err != nil {
		return err
	}
	if err := f.removeEntries(ctx); err != nil {
		return err
	}
	if err := f.removeGroups(ctx); err != nil {
		return err
	}
	if len(f.result.Waiting) > 0 {
		return nil
	}
	return f.d.retry(ctx, func() (bool, error) {
		h, _, err := f.head(ctx)
		if err != nil {
			return false, err
		}
		resp, err := f.d.txn(ctx, f.guard(h), clientv3.OpDelete(f.key), clientv3.OpDelete(f.d.key(dirRebuilt, f.pair)))
		return err == nil && resp.Succeeded, err
	})
}

func (f *forget) head(ctx context.Context, ops ...clientv3.Op) (head, *clientv3.TxnResponse, error) {
	h, resp, err := f.d.readHead(ctx, ops...)
	if err == nil {
		err = f.d.sameID(h)
	}
	return h, resp, err
}

// guard compares the registration, and requires that the pair is not live.
func (f *forget) guard(h head) []clientv3.Cmp {
	return append(f.d.sameFleet(h), same(f.key, f.raw), same(f.d.key(dirLoad, f.pair), ""))
}

// mark writes the state forgotten and the ID of the pair, if the pair is registered. It sets f.raw to the registration.
// The error is ErrLive if the pair publishes its load.
func (f *forget) mark(ctx context.Context) (done bool, _ error) {
	h, resp, err := f.head(ctx, clientv3.OpGet(f.key), clientv3.OpGet(f.d.key(dirLoad, f.pair)))
	if err != nil {
		return false, err
	}
	if len(resp.Responses[3].GetResponseRange().Kvs) > 0 {
		return false, ErrLive
	}
	kvs := resp.Responses[2].GetResponseRange().Kvs
	if len(kvs) == 0 {
		f.raw = ""
		return true, nil
	}
	f.raw = string(kvs[0].Value)
	m, err := decodeMember(f.pair, kvs[0].Value)
	if err != nil {
		return false, &ValueError{f.key, err}
	}
	if m.State == StateForgotten {
		return true, nil
	}
	cmps := append(f.guard(h), same(f.d.prefix+keyCounter, h.rawCtr)) // no move begins in the meantime
	m.State = StateForgotten
	f.raw = encode(m)
	result, err := f.d.txn(ctx, cmps, clientv3.OpPut(f.key, f.raw), clientv3.OpPut(f.d.key(dirForgotten, m.ID),
		encode(forgottenValue{f.pair, max(h.counter, f.d.known().maxEpoch(h.fleet)), m.Addresses})))
	return err == nil && result.Succeeded, err
}

// readMoves deletes the intents of moves to the pair, because no pair would end these moves. It reads the intents of
// moves from the pair.
func (f *forget) readMoves(ctx context.Context) error {
	f.reserved = map[string]bool{}
	return f.d.retry(ctx, func() (bool, error) {
		f.result.Waiting = nil
		h, resp, err := f.head(ctx, clientv3.OpGet(f.d.prefix+dirMoves, clientv3.WithPrefix()))
		if err != nil {
			return false, err
		}
		cmps, removed := f.guard(h), []uint64(nil)
		var ops []clientv3.Op
		for _, kv := range resp.Responses[2].GetResponseRange().Kvs {
			m, err := decodeMove(strings.TrimPrefix(string(kv.Key), f.d.prefix+dirMoves), kv.Value)
			if err != nil {
				return false, &ValueError{string(kv.Key), err}
			}
			switch {
			case m.To == f.pair && len(ops) < batchQueues:
				cmps = append(cmps, same(string(kv.Key), string(kv.Value)))
				ops = append(ops, clientv3.OpDelete(string(kv.Key)))
				removed = append(removed, m.Epoch)
			case m.From == f.pair:
				f.result.Waiting = append(f.result.Waiting, m.Epoch)
				for _, name := range m.Queues {
					f.reserved[name] = true
				}
			}
		}
		slices.Sort(f.result.Waiting)
		if len(ops) == 0 {
			return true, nil
		}
		result, err := f.d.txn(ctx, cmps, ops...)
		if err == nil && result.Succeeded {
			f.result.Moves = slices.Sorted(slices.Values(append(f.result.Moves, removed...)))
		}
		return false, err // read the moves again
	})
}

// removeEntries deletes the entries of the pair, except those of moves that have not ended.
func (f *forget) removeEntries(ctx context.Context) error {
	all, _, err := f.d.entries(ctx)
	if err != nil {
		return err
	}
	names := slices.DeleteFunc(slices.Sorted(maps.Keys(all)), func(name string) bool {
		return all[name].Pair != f.pair || f.reserved[name]
	})
	if f.raw == "" && len(names) == 0 && len(f.reserved) == 0 && len(f.result.Moves) == 0 {
		return ErrNotMember
	}
	guard := []clientv3.Cmp{same(f.key, f.raw), same(f.d.key(dirLoad, f.pair), "")}
	ok := func(h head, _ known) error { return f.d.sameID(h) }
	return f.d.apply(ctx, names, ok, guard, func(_ string, old stored) (change, entryValue) {
		if old.Pair != f.pair {
			return keep, entryValue{}
		}
		return remove, entryValue{}
	}, func(string, change, entryValue) { f.result.Queues++ })
}

// removeGroups deletes the placement groups of the pair.
func (f *forget) removeGroups(ctx context.Context) error {
	raws := map[string]string{}
	_, err := f.d.list(ctx, dirGroups, func(kv *mvccpb.KeyValue) {
		if g, err := decodeGroup(kv.Value); err == nil && g.Pair == f.pair {
			raws[string(kv.Key)] = string(kv.Value)
		}
	})
	if err != nil {
		return err
	}
	h, _, err := f.head(ctx)
	if err != nil {
		return err
	}
	for keys := range slices.Chunk(slices.Sorted(maps.Keys(raws)), batchQueues) {
		cmps := f.guard(h)
		var ops []clientv3.Op
		for _, key := range keys {
			cmps = append(cmps, same(key, raws[key]))
			ops = append(ops, clientv3.OpDelete(key))
		}
		result, err := f.d.txn(ctx, cmps, ops...)
		if err == nil && !result.Succeeded {
			err = ErrContention
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// IsForgotten reports whether Forget has removed a pair, or has begun to, and no other pair has registered under its
// name since. It returns false if the copy is not current.
func (d *Directory) IsForgotten(pair string) bool {
	d.mu.RLock()
	defer d.mu.RUnlock()
	if d.copy == nil || !d.current {
		return false
	}
	if m, registered := d.copy.pairs[pair]; registered {
		return m.State == StateForgotten
	}
	for _, v := range d.copy.forgotten {
		if v.Pair == pair {
			return true
		}
	}
	return false
}

// Forgotten reports whether the copy contains the removal of this pair by Forget, in the fleet of this pair. It does
// not block.
func (d *Directory) Forgotten() bool {
	id := d.opts.State().FleetID
	d.mu.RLock()
	defer d.mu.RUnlock()
	return d.forgottenLocked() && id != "" && d.copy.head.fleet.ID == id
}

// LostTarget reports whether Forget has removed the target of a move, even if another pair has registered under its
// name since. epoch is the epoch of the move. addresses are those of all removed pairs with this name. It returns
// false if the copy is not current.
func (d *Directory) LostTarget(pair string, epoch uint64) (addresses []string, lost bool) {
	lost = d.IsForgotten(pair)
	d.mu.RLock()
	defer d.mu.RUnlock()
	if d.copy == nil || !d.current {
		return nil, false
	}
	for _, v := range d.copy.forgotten {
		if v.Pair == pair {
			lost = lost || v.Epoch >= epoch
			addresses = append(addresses, v.Addresses...)
		}
	}
	slices.Sort(addresses)
	return slices.Compact(addresses), lost
}
