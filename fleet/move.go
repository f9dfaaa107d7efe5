// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

const (
	// MaxMoveQueues is the maximum number of queues in one move: the end of a move changes all entries in one
	// transaction of etcd.
	MaxMoveQueues = 50
	// MaxMoves is the maximum number of moves in a fleet that have not ended.
	MaxMoves = 100
)

// ErrMoving is returned by BeginMove and Reclaim if one of the queues is part of another move. BeginMove also returns
// it if the fleet has MaxMoves moves. Leave returns it if the pair has an unfinished move.
var ErrMoving = errors.New("queue is being moved")

// Move is an unfinished move of queues to another pair (decision 0038).
type Move struct {
	// Epoch is the ownership epoch of the queues at the target.
	Epoch uint64
	// From is the source, and To the target.
	From, To string
	// Queues are sorted.
	Queues []string
}

// moveValue is the intent of a move. The log of the target determines whether the queues were taken.
type moveValue struct {
	From   string   `json:"from"`
	To     string   `json:"to"`
	Queues []string `json:"queues"`
}

func decodeMove(name string, raw []byte) (m Move, err error) {
	if m.Epoch, err = strconv.ParseUint(name, 10, 64); err != nil || m.Epoch == 0 {
		return m, fmt.Errorf("invalid epoch %.40q", name)
	}
	var v moveValue
	if err := decode(raw, &v); err != nil {
		return m, err
	}
	m.From, m.To, m.Queues = v.From, v.To, v.Queues
	return m, errors.Join(CheckPair(v.From), CheckPair(v.To), checkMoveQueues(v.Queues))
}

func checkMoveQueues(queues []string) error {
	if len(queues) == 0 || len(queues) > MaxMoveQueues {
		return fmt.Errorf("%w: move of %d queues, must have 1 to %d", ErrInvalid, len(queues), MaxMoveQueues)
	}
	for i, name := range queues {
		if err := checkName("queue name", name); err != nil {
			return err
		}
		if i > 0 && queues[i-1] >= name {
			return fmt.Errorf("%w: queue %q is listed twice, or not in order", ErrInvalid, name)
		}
	}
	return nil
}

func (m *Move) encode() string { return encode(moveValue{m.From, m.To, m.Queues}) }

func (d *Directory) moveKey(epoch uint64) string {
	return d.key(dirMoves, strconv.FormatUint(epoch, 10))
}

// Moves returns the unfinished moves from the copy, in ascending order of their epochs. Their slices must not be
// modified.
func (d *Directory) Moves() []Move {
	d.mu.RLock()
	defer d.mu.RUnlock()
	if d.copy == nil {
		return nil
	}
	out := make([]Move, 0, len(d.copy.moves))
	for _, epoch := range slices.Sorted(maps.Keys(d.copy.moves)) {
		out = append(out, d.copy.moves[epoch])
	}
	return out
}

// Group returns the queues of a placement group from the copy, sorted by name.
func (d *Directory) Group(group string) (queues []string) {
	d.mu.RLock()
	defer d.mu.RUnlock()
	if d.copy == nil {
		return nil
	}
	for name, e := range d.copy.queues {
		if e.group == group {
			queues = append(queues, name)
		}
	}
	slices.Sort(queues)
	return queues
}

// PairAddresses returns the addresses of the nodes of a pair from the copy. The slice must not be modified.
func (d *Directory) PairAddresses(pair string) []string {
	d.mu.RLock()
	defer d.mu.RUnlock()
	if d.copy == nil {
		return nil
	}
	return d.copy.pairs[pair].Addresses
}

// PairLive reports whether the copy contains the load of a pair.
func (d *Directory) PairLive(pair string) bool {
	d.mu.RLock()
	defer d.mu.RUnlock()
	if d.copy == nil {
		return false
	}
	_, live := d.copy.loads[pair]
	return live
}

// BeginMove writes the intent to move queues of another pair to this pair, with a new ownership epoch. It changes no
// entry: until FinishMove, the queues are assigned to the source.
//
// The error wraps ErrMoving if one of the queues is part of another move or the fleet has MaxMoves moves. It wraps
// ErrInvalid if the queues are not assigned to one other pair, and ErrNotMember if a pair is not registered. It wraps
// ErrNoPair if this pair is draining, or one of the pairs is joining, leaving or being removed. The other errors are
// those of Assign. If the error wraps ErrUnavailable, the move may have begun.
func (d *Directory) BeginMove(ctx context.Context, queues []string) (m Move, _ error) {
	queues = slices.Sorted(slices.Values(queues))
	if err := checkMoveQueues(queues); err != nil {
		return Move{}, err
	}
	if err := acquire(ctx, d.assigning); err != nil {
		return Move{}, err
	}
	defer func() { <-d.assigning }()
	tried := map[uint64]bool{}
	err := d.retry(ctx, func() (done bool, err error) {
		m, done, err = d.tryBeginMove(ctx, queues, tried)
		return done, err
	})
	if err != nil {
		return Move{}, fmt.Errorf("move queues: %w", err)
	}
	return m, nil
}

// tryBeginMove is an attempt of BeginMove. tried contains the epochs of earlier attempts, some of which may have
// succeeded.
func (d *Directory) tryBeginMove(
	ctx context.Context, queues []string, tried map[uint64]bool,
) (m Move, done bool, _ error) {
	k := d.known()
	if k.Term == 0 {
		return m, false, ErrNotActive
	}
	ops := []clientv3.Op{
		clientv3.OpGet(d.prefix+dirMoves, clientv3.WithPrefix()), clientv3.OpGet(d.prefix+dirPairs, clientv3.WithPrefix()),
	}
	for _, name := range queues {
		ops = append(ops, clientv3.OpGet(d.key(dirQueues, name)))
	}
	h, resp, err := d.readHead(ctx, ops...)
	if err != nil {
		return m, false, err
	}
	if err := d.check(ctx, h, k); err != nil {
		return m, false, err
	}
	m = Move{Epoch: h.counter + 1, To: d.opts.Pair, Queues: queues}
	if begun, err := d.checkOtherMoves(resp, queues, tried); err != nil || begun.Epoch != 0 {
		return begun, err == nil, err
	}
	cmps := d.sameHead(h)
	for i, name := range queues {
		kvs := resp.Responses[4+i].GetResponseRange().Kvs
		if len(kvs) == 0 {
			return m, false, fmt.Errorf("%w: queue %q is not assigned to a pair", ErrInvalid, name)
		}
		e, err := d.decodeStored(kvs[0])
		switch {
		case err != nil:
			return m, false, err
		case e.Pair == d.opts.Pair:
			return m, false, fmt.Errorf("%w: queue %q already belongs to pair %s", ErrInvalid, name, e.Pair)
		case m.From != "" && e.Pair != m.From:
			return m, false, fmt.Errorf("%w: queue %q belongs to pair %s, %q to pair %s", ErrInvalid, queues[0], m.From,
				name, e.Pair)
		}
		m.From = e.Pair
		cmps = append(cmps, same(d.key(dirQueues, name), e.raw))
	}
	pairs, err := d.checkMovePairs(resp, m.From)
	if err != nil {
		return m, false, err
	}
	tried[m.Epoch] = true
	result, err := d.txn(ctx, append(cmps, pairs...), d.putCounter(m.Epoch),
		clientv3.OpPut(d.moveKey(m.Epoch), m.encode()))
	if err != nil || !result.Succeeded {
		return m, false, err
	}
	d.see(head{fleet: h.fleet, raw: h.raw, counter: m.Epoch})
	return m, true, nil
}

// checkOtherMoves verifies that the queues are not part of another move, and that the fleet has fewer than MaxMoves
// moves. If an earlier attempt has begun the move, checkOtherMoves returns that move.
func (d *Directory) checkOtherMoves(
	resp *clientv3.TxnResponse, queues []string, tried map[uint64]bool,
) (begun Move, _ error) {
	kvs := resp.Responses[2].GetResponseRange().Kvs
	for _, kv := range kvs {
		other, err := decodeMove(strings.TrimPrefix(string(kv.Key), d.prefix+dirMoves), kv.Value)
		if err != nil {
			return begun, &ValueError{string(kv.Key), err}
		}
		if tried[other.Epoch] && other.To == d.opts.Pair && slices.Equal(other.Queues, queues) {
			return other, nil
		}
		for _, name := range queues {
			if slices.Contains(other.Queues, name) {
				return begun, fmt.Errorf("%w: %q, to pair %s", ErrMoving, name, other.To)
			}
		}
	}
	if len(kvs) >= MaxMoves {
		return begun, fmt.Errorf("%w: the fleet has %d moves, the maximum", ErrMoving, len(kvs))
	}
	return begun, nil
}

// checkMovePairs verifies the registrations of this pair, which is the target, and of the source, and returns
// comparisons with them.
func (d *Directory) checkMovePairs(resp *clientv3.TxnResponse, from string) (cmps []clientv3.Cmp, _ error) {
	for _, kv := range resp.Responses[3].GetResponseRange().Kvs {
		name := strings.TrimPrefix(string(kv.Key), d.prefix+dirPairs)
		if name != from && name != d.opts.Pair {
			continue
		}
		m, err := decodeMember(name, kv.Value)
		switch {
		case err != nil:
			return nil, &ValueError{string(kv.Key), err}
		case m.State == StateOpen, name == from && m.State == StateDraining:
			cmps = append(cmps, same(string(kv.Key), string(kv.Value)))
		default:
			return nil, fmt.Errorf("%w: pair %s is %s", ErrNoPair, name, m.State)
		}
	}
	if len(cmps) != 2 {
		return nil, fmt.Errorf("%w: %s or %s", ErrNotMember, from, d.opts.Pair)
	}
	return cmps, nil
}

// RestoreMove writes the intent of a move to this pair again, if it is missing, because the directory was lost or
// restored.
func (d *Directory) RestoreMove(ctx context.Context, m Move) error {
	if err := checkMoveQueues(m.Queues); err != nil {
		return err
	}
	m.To = d.opts.Pair
	key := d.moveKey(m.Epoch)
	return d.changeMove(ctx, m.Epoch, func(h head, raw string) ([]clientv3.Cmp, []clientv3.Op, error) {
		if raw != "" {
			return nil, nil, nil
		}
		return append(d.sameFleet(h), same(key, "")), []clientv3.Op{clientv3.OpPut(key, m.encode())}, nil
	})
}

// CancelMove deletes the intent of a move to this pair. The source must have no fence for the move. The log of this
// pair must contain the cancellation, or must refuse the import of this epoch for another reason.
func (d *Directory) CancelMove(ctx context.Context, epoch uint64) error {
	key := d.moveKey(epoch)
	return d.changeMove(ctx, epoch, func(h head, raw string) ([]clientv3.Cmp, []clientv3.Op, error) {
		if raw == "" {
			return nil, nil, nil
		}
		if m, err := decodeMove(strconv.FormatUint(epoch, 10), []byte(raw)); err == nil && m.To != d.opts.Pair {
			return nil, nil, fmt.Errorf("%w: the target of the move is pair %s", ErrInvalid, m.To)
		}
		return append(d.sameFleet(h), same(key, raw)), []clientv3.Op{clientv3.OpDelete(key)}, nil
	})
}

// changeMove applies a change of the intent of a move. decide returns no operations if there is nothing to change. raw
// is the current value; "" means missing.
func (d *Directory) changeMove(
	ctx context.Context, epoch uint64, decide func(h head, raw string) ([]clientv3.Cmp, []clientv3.Op, error),
) error {
	err := d.retry(ctx, func() (bool, error) {
		if d.known().Term == 0 {
			return false, ErrNotActive
		}
		h, resp, err := d.readHead(ctx, clientv3.OpGet(d.moveKey(epoch)))
		if err != nil {
			return false, err
		}
		if err := d.sameID(h); err != nil {
			return false, err
		}
		raw := ""
		if kvs := resp.Responses[2].GetResponseRange().Kvs; len(kvs) > 0 {
			raw = string(kvs[0].Value)
		}
		cmps, ops, err := decide(h, raw)
		if err != nil || len(ops) == 0 {
			return err == nil, err
		}
		done, err := d.txn(ctx, cmps, ops...)
		return err == nil && done.Succeeded, err
	})
	if err != nil {
		return fmt.Errorf("move %d: %w", epoch, err)
	}
	return nil
}

// FinishMove assigns the queues of a move to this pair, and deletes the intent. According to its log, this pair must
// have taken the queues. m.Queues are the queues that this pair owns under the epoch of the move. The other queues in
// the intent were deleted after they were taken: FinishMove deletes their entries. The intent may be missing.
//
// If the directory assigns one of the queues to a third pair, or under a higher epoch to the source, the error wraps
// a *ConflictError. The other errors are those of Assign.
func (d *Directory) FinishMove(ctx context.Context, m Move) error {
	if len(m.Queues) > MaxMoveQueues {
		return fmt.Errorf("%w: move of %d queues", ErrInvalid, len(m.Queues))
	}
	err := d.retry(ctx, func() (bool, error) { return d.tryFinishMove(ctx, m) })
	if err != nil {
		return fmt.Errorf("finish move %d: %w", m.Epoch, err)
	}
	return nil
}

func (d *Directory) tryFinishMove(ctx context.Context, m Move) (done bool, _ error) {
	k := d.known()
	if k.Term == 0 {
		return false, ErrNotActive
	}
	ops := []clientv3.Op{clientv3.OpGet(d.key(dirPairs, d.opts.Pair)), clientv3.OpGet(d.moveKey(m.Epoch))}
	for _, name := range m.Queues {
		ops = append(ops, clientv3.OpGet(d.key(dirQueues, name)))
	}
	h, resp, err := d.readHead(ctx, ops...)
	if err != nil {
		return false, err
	}
	if err := d.check(ctx, h, k); err != nil {
		return false, err
	}
	f := finish{d: d, m: m, term: k.Term, groups: map[string]bool{}}
	gone, err := f.gone(ctx, resp.Responses[3].GetResponseRange().Kvs)
	if err != nil {
		return false, err
	}
	pair := resp.Responses[2].GetResponseRange().Kvs
	if len(pair) == 0 {
		return false, fmt.Errorf("%w: %s is not registered", ErrNotMember, d.opts.Pair)
	}
	f.cmps = append(d.sameHead(h), same(string(pair[0].Key), string(pair[0].Value)))
	if kvs := resp.Responses[3].GetResponseRange().Kvs; len(kvs) > 0 {
		f.cmps = append(f.cmps, same(string(kvs[0].Key), string(kvs[0].Value)))
		f.ops = append(f.ops, clientv3.OpDelete(string(kvs[0].Key)))
	}
	for i, name := range m.Queues {
		old := stored{}
		if kvs := resp.Responses[4+i].GetResponseRange().Kvs; len(kvs) > 0 {
			if old, err = d.decodeStored(kvs[0]); err != nil {
				return false, err
			}
		}
		f.entry(name, old)
	}
	for name, old := range gone {
		if old.Pair == m.From && old.Epoch < m.Epoch {
			f.cmps = append(f.cmps, same(d.key(dirQueues, name), old.raw))
			f.ops = append(f.ops, clientv3.OpDelete(d.key(dirQueues, name)))
		}
	}
	if len(f.conflicts) > 0 {
		return false, &ConflictError{f.conflicts}
	}
	if err := f.moveGroups(ctx); err != nil || len(f.ops) == 0 {
		return err == nil, err
	}
	// A copy of the directory from before the end of the move has a lower counter, so that pairs detect it if it is
	// restored.
	counter := h.counter + 1
	result, err := d.txn(ctx, f.cmps, append(f.ops, d.putCounter(counter))...)
	if err != nil || !result.Succeeded {
		return false, err
	}
	d.see(head{fleet: h.fleet, raw: h.raw, counter: counter})
	return true, nil
}

// finish is the transaction of FinishMove and Reclaim, which assigns queues to this pair.
type finish struct {
	d         *Directory
	m         Move
	term      uint64
	cmps      []clientv3.Cmp
	ops       []clientv3.Op
	groups    map[string]bool
	conflicts []Conflict
}

// gone returns the entries of those queues of the intent that were deleted after they were taken.
func (f *finish) gone(ctx context.Context, intent []*mvccpb.KeyValue) (map[string]stored, error) {
	entries := map[string]stored{}
	if len(intent) == 0 {
		return entries, nil
	}
	m, err := decodeMove(strconv.FormatUint(f.m.Epoch, 10), intent[0].Value)
	if err != nil {
		return nil, &ValueError{string(intent[0].Key), err}
	}
	for _, name := range m.Queues {
		if slices.Contains(f.m.Queues, name) {
			continue
		}
		resp, err := f.d.get(ctx, f.d.key(dirQueues, name))
		if err != nil {
			return nil, err
		}
		if len(resp.Kvs) > 0 {
			if entries[name], err = f.d.decodeStored(resp.Kvs[0]); err != nil {
				return nil, err
			}
		}
	}
	return entries, nil
}

func (f *finish) entry(name string, old stored) {
	own := f.d.opts.Pair
	switch {
	case old.raw != "" && old.Pair == own && old.Epoch >= f.m.Epoch:
		return // the queue may have been created again
	case old.raw != "" && (old.Pair != f.m.From && old.Pair != own || old.Epoch > f.m.Epoch):
		f.conflicts = append(f.conflicts, Conflict{name, f.m.Epoch, old.Pair, old.Epoch})
		return
	}
	v := entryValue{Pair: own, Epoch: f.m.Epoch, Term: f.term, Group: old.Group}
	if old.raw == "" {
		v.Group = Tag(name)
	}
	if v.Group != "" {
		f.groups[v.Group] = true
	}
	key := f.d.key(dirQueues, name)
	f.cmps = append(f.cmps, same(key, old.raw))
	f.ops = append(f.ops, clientv3.OpPut(key, encode(v)))
}

// moveGroups adds the assignment of the placement groups of the queues to this pair to the transaction, except groups
// of a third pair. A group is written even if it is unchanged, so that a concurrent deletion of the group fails.
func (f *finish) moveGroups(ctx context.Context) error {
	names := slices.Sorted(maps.Keys(f.groups))
	if len(names) == 0 {
		return nil
	}
	gets := make([]clientv3.Op, len(names))
	for i, name := range names {
		gets[i] = clientv3.OpGet(f.d.key(dirGroups, name))
	}
	resp, err := f.d.txn(ctx, nil, gets...)
	if err != nil {
		return err
	}
	for i, name := range names {
		key, raw := f.d.key(dirGroups, name), ""
		if kvs := resp.Responses[i].GetResponseRange().Kvs; len(kvs) > 0 {
			raw = string(kvs[0].Value)
		}
		if g, err := decodeGroup([]byte(raw)); err == nil && g.Pair != f.m.From && g.Pair != f.d.opts.Pair {
			continue // of a third pair
		}
		f.cmps = append(f.cmps, same(key, raw))
		f.ops = append(f.ops, clientv3.OpPut(key, encode(groupValue{f.d.opts.Pair})))
	}
	return nil
}

// checkMovesOf returns an error that wraps ErrMoving if this pair is a member and the directory contains a move from
// or to it. If the pair is not a member, its log contains no moves. In this case, checkMovesOf deletes the intents of
// moves to the pair, which are from an older copy of the directory.
func (d *Directory) checkMovesOf(ctx context.Context, guard []clientv3.Cmp) error {
	resp, err := d.get(ctx, d.prefix+dirMoves, clientv3.WithPrefix())
	if err != nil {
		return err
	}
	member := d.opts.State().FleetID != ""
	for _, kv := range resp.Kvs {
		m, err := decodeMove(strings.TrimPrefix(string(kv.Key), d.prefix+dirMoves), kv.Value)
		switch {
		case err != nil:
			return &ValueError{string(kv.Key), err}
		case m.From != d.opts.Pair && m.To != d.opts.Pair:
		case member:
			return fmt.Errorf("%w: move %d from pair %s to pair %s", ErrMoving, m.Epoch, m.From, m.To)
		case m.To == d.opts.Pair:
			cmps := append(slices.Clip(guard), same(string(kv.Key), string(kv.Value)))
			if _, err := d.txn(ctx, cmps, clientv3.OpDelete(string(kv.Key))); err != nil {
				return err
			}
		}
	}
	return nil
}
