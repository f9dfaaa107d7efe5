// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"strings"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// Assign returns the owner of a queue name. If the name is not assigned, it chooses a pair and assigns the name to
// it. group is the placement group; if it is empty, the group is the tag of the name, if any.
//
// If this pair is the owner, the active may create the queue, with the returned epoch, in the term in which it has
// called Assign. The epoch is new in each call. A node must not start another creation of the name, with a call of
// Assign, before the queue is committed or can no longer be committed. A queue that exists at this pair must not be
// assigned again. If another pair is the owner, that pair creates the queue. Owner.Addresses can be empty.
//
// The error wraps a *ValueError, the context's error, or one of ErrNotActive, ErrNotMember, ErrForgotten, ErrLost,
// ErrRestored, ErrRebuilding, ErrNoPair, ErrInvalid, ErrPartitions, ErrContention and ErrUnavailable. If it wraps
// ErrUnavailable, the name may have been assigned; the caller may call Assign again.
func (d *Directory) Assign(ctx context.Context, queue, group string) (Owner, error) {
	if group == "" {
		group = Tag(queue)
	}
	if err := checkName("queue name", queue); err != nil {
		return Owner{}, err
	}
	if group != "" {
		if err := checkName("placement group", group); err != nil {
			return Owner{}, err
		}
	}
	if err := acquire(ctx, d.assigning); err != nil {
		return Owner{}, err
	}
	defer func() { <-d.assigning }()
	var owner Owner
	err := d.retry(ctx, func() (done bool, err error) {
		owner, done, err = d.tryAssign(ctx, queue, group)
		return done, err
	})
	if err != nil {
		return Owner{}, fmt.Errorf("assign queue %q: %w", queue, err)
	}
	return owner, nil
}

func (d *Directory) tryAssign(ctx context.Context, queue, group string) (_ Owner, done bool, _ error) {
	k := d.known()
	if k.Term == 0 {
		return Owner{}, false, ErrNotActive
	}
	key := d.key(dirQueues, queue)
	rel, related := d.relatedTo(queue)
	h, resp, err := d.readHead(ctx, append([]clientv3.Op{
		clientv3.OpGet(key), clientv3.OpGet(d.key(dirGroups, group)),
		clientv3.OpGet(d.key(dirPairs, d.opts.Pair)), clientv3.OpGet(d.key(dirQueues, group)),
	}, related...)...)
	if err != nil {
		return Owner{}, false, err
	}
	if err := d.check(ctx, h, k); err != nil {
		return Owner{}, false, err
	}
	if kvs := resp.Responses[2].GetResponseRange().Kvs; len(kvs) > 0 {
		e, err := decodeEntry(kvs[0].Value)
		if err != nil {
			return Owner{}, false, &ValueError{key, err}
		}
		if e.Pair != d.opts.Pair {
			owner, err := d.ownerOf(ctx, e)
			return owner, err == nil, err
		}
		pair := resp.Responses[4].GetResponseRange().Kvs
		return d.claim(ctx, h, k, pair, key, stored{string(kvs[0].Value), e})
	}
	g := placedGroup{name: group}
	if kvs := resp.Responses[3].GetResponseRange().Kvs; group != "" && len(kvs) > 0 {
		g.raw = string(kvs[0].Value)
	}
	if kvs := resp.Responses[5].GetResponseRange().Kvs; group != "" && len(kvs) > 0 {
		g.queueRaw = string(kvs[0].Value)
	}
	err = d.read(&rel, resp.Header.Revision, resp.Responses[6].GetResponseRange().Kvs,
		resp.Responses[7].GetResponseRange().Kvs)
	if err != nil {
		return Owner{}, false, err
	}
	return d.place(ctx, h, k, queue, g, &rel)
}

// placedGroup is a placement group as read from the directory.
type placedGroup struct {
	name     string // "": none
	raw      string // value of the group; "": missing
	queueRaw string // value of the queue with the name of the group; "": missing
}

// ownerOf returns the owner of an entry of another pair, with the addresses in the registration of that pair, if any.
func (d *Directory) ownerOf(ctx context.Context, e entryValue) (Owner, error) {
	owner := Owner{Pair: e.Pair, Epoch: e.Epoch}
	key := d.key(dirPairs, e.Pair)
	resp, err := d.get(ctx, key)
	if err != nil || len(resp.Kvs) == 0 {
		return owner, err
	}
	m, err := decodeMember(e.Pair, resp.Kvs[0].Value)
	if err != nil {
		return owner, &ValueError{key, err}
	}
	owner.Addresses = m.Addresses
	return owner, nil
}

// claim writes a new epoch and the term of this active to an entry of this pair. Each claim has a new epoch, so that
// a delayed deletion of the entry fails. pair is the registration of this pair. If the pair is leaving or being
// removed, the error wraps ErrNoPair.
func (d *Directory) claim(
	ctx context.Context, h head, k known, pair []*mvccpb.KeyValue, key string, e stored,
) (Owner, bool, error) {
	if e.Term > k.Term {
		return Owner{}, false, fmt.Errorf("%w: another node is active in term %d", ErrNotActive, e.Term)
	}
	if len(pair) == 0 {
		return Owner{}, false, fmt.Errorf("%w: %s is not registered", ErrNotMember, d.opts.Pair)
	}
	m, err := decodeMember(d.opts.Pair, pair[0].Value)
	switch {
	case err != nil:
		return Owner{}, false, &ValueError{string(pair[0].Key), err}
	case m.State == StateLeaving, m.State == StateForgotten:
		return Owner{}, false, fmt.Errorf("%w: pair %s is %s", ErrNoPair, m.Name, m.State)
	}
	cmps := append(d.sameHead(h), same(string(pair[0].Key), string(pair[0].Value)), same(key, e.raw))
	e.Epoch, e.Term = h.counter+1, k.Term
	resp, err := d.txn(ctx, cmps, d.putCounter(e.Epoch), clientv3.OpPut(key, encode(e.entryValue)))
	if err != nil || !resp.Succeeded {
		return Owner{}, false, err
	}
	d.see(head{fleet: h.fleet, raw: h.raw, counter: e.Epoch})
	return Owner{Pair: m.Name, Addresses: m.Addresses, Epoch: e.Epoch}, true, nil
}

func (d *Directory) putCounter(n uint64) clientv3.Op {
	return clientv3.OpPut(d.prefix+keyCounter, strconv.FormatUint(n, 10))
}

// place chooses a pair for an unassigned name, and writes the entry. done is false if the directory has changed in the
// meantime.
func (d *Directory) place(
	ctx context.Context, h head, k known, queue string, group placedGroup, rel *related,
) (_ Owner, done bool, _ error) {
	pairs, raws, rules, err := d.readPairs(ctx)
	if err != nil {
		return Owner{}, false, err
	}
	pair, err := d.pairOfGroup(group, pairs)
	if err != nil {
		return Owner{}, false, err
	}
	if pair == "" {
		if pair, err = choose(queue, cmp.Or(group.name, queue), pairs, rules, rel.pairs); err != nil {
			return Owner{}, false, err
		}
	}
	e := entryValue{Pair: pair, Epoch: h.counter + 1, Group: group.name}
	if pair == d.opts.Pair {
		e.Term = k.Term
	}
	key := d.key(dirQueues, queue)
	cmps := append(d.sameHead(h), same(key, ""), same(d.key(dirPairs, pair), raws[pair]))
	cmps = append(cmps, rel.unchanged()...)
	ops := []clientv3.Op{d.putCounter(e.Epoch), clientv3.OpPut(key, encode(e))}
	if group.name != "" {
		// The group is written even if it is unchanged, so that a concurrent deletion of the group fails.
		groupKey := d.key(dirGroups, group.name)
		cmps = append(cmps, same(groupKey, group.raw))
		ops = append(ops, clientv3.OpPut(groupKey, encode(groupValue{pair})))
	}
	if group.name != "" && group.name != queue {
		cmps = append(cmps, same(d.key(dirQueues, group.name), group.queueRaw))
	}
	resp, err := d.txn(ctx, cmps, ops...)
	if err != nil || !resp.Succeeded {
		return Owner{}, false, err
	}
	d.see(head{fleet: h.fleet, raw: h.raw, counter: e.Epoch})
	owner := Owner{Pair: pair, Epoch: e.Epoch}
	for _, p := range pairs {
		if p.Name == pair {
			owner.Addresses = p.Addresses
		}
	}
	return owner, true, nil
}

// pairOfGroup returns the pair of a placement group, or else of the queue with its name. It returns "" if neither
// exists, or the pair has left. The error wraps ErrNoPair if the pair is leaving or being removed.
func (d *Directory) pairOfGroup(group placedGroup, pairs []candidate) (string, error) {
	var placed string
	switch {
	case group.raw != "":
		g, err := decodeGroup([]byte(group.raw))
		if err != nil {
			return "", &ValueError{d.key(dirGroups, group.name), err}
		}
		placed = g.Pair
	case group.queueRaw != "":
		e, err := decodeEntry([]byte(group.queueRaw))
		if err != nil {
			return "", &ValueError{d.key(dirQueues, group.name), err}
		}
		placed = e.Pair
	}
	for _, p := range pairs {
		switch {
		case p.Name != placed:
		case p.State == StateLeaving, p.State == StateForgotten:
			return "", fmt.Errorf("%w: pair %s of group %q is %s", ErrNoPair, placed, group.name, p.State)
		default:
			return placed, nil
		}
	}
	return "", nil
}

// readPairs returns the registered pairs, their values by name, and the rules. A malformed pair or rule is an error,
// so that no queue is placed at the wrong pair.
func (d *Directory) readPairs(ctx context.Context) (pairs []candidate, raws map[string]string, rules []Rule, _ error) {
	all := func(kind string) clientv3.Op { return clientv3.OpGet(d.prefix+kind, clientv3.WithPrefix()) }
	resp, err := d.txn(ctx, nil, all(dirPairs), all(dirLoad), all(dirRules))
	if err != nil {
		return nil, nil, nil, err
	}
	loads := map[string]Load{}
	for _, kv := range resp.Responses[1].GetResponseRange().Kvs {
		if l, err := decodeLoad(kv.Value); err == nil { // a pair with a malformed load gets no new queues
			loads[strings.TrimPrefix(string(kv.Key), d.prefix+dirLoad)] = l
		}
	}
	raws = map[string]string{}
	for _, kv := range resp.Responses[0].GetResponseRange().Kvs {
		name := strings.TrimPrefix(string(kv.Key), d.prefix+dirPairs)
		m, err := decodeMember(name, kv.Value)
		if err != nil {
			return nil, nil, nil, &ValueError{string(kv.Key), err}
		}
		l, live := loads[name]
		pairs, raws[name] = append(pairs, candidate{m, l, live}), string(kv.Value)
	}
	for _, kv := range resp.Responses[2].GetResponseRange().Kvs {
		r, err := decodeRule(strings.TrimPrefix(string(kv.Key), d.prefix+dirRules), kv.Value)
		if err != nil {
			return nil, nil, nil, &ValueError{string(kv.Key), err}
		}
		rules = append(rules, r)
	}
	return pairs, raws, rules, nil
}

// Release deletes the entry of a deleted queue of this pair. The deletion of the queue must be committed before the
// call. epoch is the ownership epoch of the deleted queue. An entry with another pair or epoch remains. After an
// error, the entry may remain until Reconcile deletes it.
func (d *Directory) Release(ctx context.Context, queue string, epoch uint64) error {
	key := d.key(dirQueues, queue)
	err := d.retry(ctx, func() (bool, error) {
		h, resp, err := d.readHead(ctx, clientv3.OpGet(key))
		if err != nil {
			return false, err
		}
		if id := d.opts.State().FleetID; h.raw == "" || h.fleet.ID != id {
			return false, ErrLost
		}
		kvs := resp.Responses[2].GetResponseRange().Kvs
		if len(kvs) == 0 {
			return true, nil
		}
		e, err := decodeEntry(kvs[0].Value)
		if err != nil {
			return false, &ValueError{key, err}
		}
		if e.Pair != d.opts.Pair || e.Epoch != epoch {
			return true, nil
		}
		done, err := d.txn(ctx, append(d.sameFleet(h), same(key, string(kvs[0].Value))), clientv3.OpDelete(key))
		return err == nil && done.Succeeded, err
	})
	if err != nil {
		return fmt.Errorf("release queue %q: %w", queue, err)
	}
	return nil
}
