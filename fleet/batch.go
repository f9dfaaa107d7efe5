// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"context"
	"fmt"
	"slices"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// batchQueues is the maximum number of entries in a transaction. By default, etcd permits 128 operations in a
// transaction, and an entry needs up to two.
const batchQueues = 50

// stored is an entry as read from etcd. raw "" means missing.
type stored struct {
	raw string
	entryValue
}

// change is a decision about an entry.
type change int

const (
	keep change = iota
	write
	remove
)

// decision returns the change of an entry. For write, it returns the new value; if its epoch is 0, the queue receives
// a new epoch. It may be called several times for an entry: only the last call before the transaction succeeds counts.
type decision func(name string, old stored) (change, entryValue)

// usable verifies the directory before a change.
type usable func(h head, k known) error

// apply calls decide for the current entries of some queues, and applies the changes in batches. After each batch, it
// calls written for each entry that was written or deleted.
func (d *Directory) apply(
	ctx context.Context, names []string, ok usable, guard []clientv3.Cmp, decide decision,
	written func(name string, c change, v entryValue),
) error {
	for batch := range slices.Chunk(names, batchQueues) {
		err := d.retry(ctx, func() (bool, error) { return d.tryBatch(ctx, batch, ok, guard, decide, written) })
		if err != nil {
			return err
		}
	}
	return nil
}

func (d *Directory) tryBatch(
	ctx context.Context, names []string, ok usable, guard []clientv3.Cmp, decide decision,
	written func(name string, c change, v entryValue),
) (done bool, _ error) {
	k := d.known()
	gets := make([]clientv3.Op, len(names))
	for i, name := range names {
		gets[i] = clientv3.OpGet(d.key(dirQueues, name))
	}
	h, resp, err := d.readHead(ctx, gets...)
	if err != nil {
		return false, err
	}
	if err := ok(h, k); err != nil {
		return false, err
	}
	b := batch{d: d, counter: h.counter, cmps: slices.Concat(d.sameFleet(h), guard), groups: map[string]bool{}}
	for i, name := range names {
		old := stored{}
		if kvs := resp.Responses[2+i].GetResponseRange().Kvs; len(kvs) > 0 {
			if old, err = d.decodeStored(kvs[0]); err != nil {
				return false, err
			}
		}
		c, v := decide(name, old)
		b.add(name, old.raw, c, v)
	}
	if len(b.changes) == 0 {
		return true, nil
	}
	if b.counter != h.counter {
		b.cmps = append(b.cmps, same(d.prefix+keyCounter, h.rawCtr))
		b.ops = append(b.ops, d.putCounter(b.counter))
	}
	result, err := d.txn(ctx, b.cmps, b.ops...)
	if err != nil || !result.Succeeded {
		return false, err
	}
	d.see(head{fleet: h.fleet, raw: h.raw, counter: b.counter})
	for _, c := range b.changes {
		written(c.name, c.change, c.value)
	}
	return true, nil
}

func (d *Directory) decodeStored(kv *mvccpb.KeyValue) (stored, error) {
	v, err := decodeEntry(kv.Value)
	if err != nil {
		return stored{}, &ValueError{string(kv.Key), err}
	}
	return stored{string(kv.Value), v}, nil
}

// batch is a transaction that changes several entries.
type batch struct {
	d       *Directory
	counter uint64
	cmps    []clientv3.Cmp
	ops     []clientv3.Op
	groups  map[string]bool // groups with an operation
	changes []changed
}

type changed struct {
	name   string
	change change
	value  entryValue
}

func (b *batch) add(name, raw string, c change, v entryValue) {
	if c == keep {
		return
	}
	key := b.d.key(dirQueues, name)
	b.cmps = append(b.cmps, same(key, raw))
	if c == remove {
		b.ops = append(b.ops, clientv3.OpDelete(key))
	} else {
		if v.Epoch == 0 {
			b.counter++
			v.Epoch = b.counter
		}
		b.ops = append(b.ops, clientv3.OpPut(key, encode(v)))
		b.addGroup(v)
	}
	b.changes = append(b.changes, changed{name, c, v})
}

// addGroup assigns the placement group to the pair, unless it is assigned to another pair. The group is written even
// if it is unchanged, so that a concurrent deletion of the group fails.
func (b *batch) addGroup(v entryValue) {
	if v.Group == "" || b.groups[v.Group] {
		return
	}
	b.groups[v.Group] = true
	key, raw := b.d.key(dirGroups, v.Group), encode(groupValue{v.Pair})
	put := []clientv3.Op{clientv3.OpPut(key, raw)}
	b.ops = append(b.ops, clientv3.OpTxn([]clientv3.Cmp{same(key, "")}, put,
		[]clientv3.Op{clientv3.OpTxn([]clientv3.Cmp{same(key, raw)}, put, nil)}))
}

// entries returns all entries, by name, and the names of malformed ones with their errors.
func (d *Directory) entries(ctx context.Context) (all map[string]stored, malformed map[string]error, _ error) {
	all, malformed = map[string]stored{}, map[string]error{}
	_, err := d.list(ctx, dirQueues, func(kv *mvccpb.KeyValue) {
		name := string(kv.Key)[len(d.prefix)+len(dirQueues):]
		e, err := d.decodeStored(kv)
		if err != nil {
			malformed[name] = err
			return
		}
		all[name] = e
	})
	if err != nil {
		return nil, nil, fmt.Errorf("list entries: %w", err)
	}
	return all, malformed, nil
}
