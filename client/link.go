// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"fmt"
	"strings"

	"google.golang.org/grpc"

	"github.com/lockstep-mq/lockstep/client/internal/link"
)

func init() {
	link.Of = func(c any) link.Conns { return conns{c.(*Client)} }
}

type conns struct{ c *Client }

// pair returns the pair of a target. pinned means that only this pair can execute the request.
func (l conns) pair(to link.Target) (pair *pairConn, pinned bool, err error) {
	switch {
	case to.Pair != "" && l.c.opts.FixedAddresses:
		return nil, true, fmt.Errorf("%w: FixedAddresses is set, so pair %s is not used", ErrRefused, to.Pair)
	case to.Pair != "":
		pair, err = l.c.owners.named(to.Pair, to.Addresses)
		return pair, true, err
	case to.XID != "":
		return l.c.owners.of(xidKey(to.XID)), true, nil
	default:
		return l.c.owners.of(to.Queue), false, nil
	}
}

func (l conns) do(ctx context.Context, op string, to link.Target, d *attempts, call link.Call) (err error) {
	var pair *pairConn
	if pair, d.pinned, err = l.pair(to); err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	return l.c.do(ctx, op, pair, d, call)
}

func (l conns) Read(ctx context.Context, op string, to link.Target, call link.Call) error {
	return l.do(ctx, op, to, &attempts{reads: true}, call)
}

func (l conns) Repeat(ctx context.Context, op string, to link.Target, call link.Call) error {
	return l.do(ctx, op, to, new(attempts), call)
}

func (l conns) Once(ctx context.Context, op string, to link.Target, call link.Call) error {
	return l.do(ctx, op, to, new(attempts), func(attempt context.Context, cc *grpc.ClientConn) error {
		err := call(attempt, cc)
		if err == nil {
			return nil
		}
		e := asError(ctx, strings.TrimPrefix(cc.Target(), passthrough), err)
		if e.retry() && !e.answered() && !e.unreached {
			e.kind = ErrOutcomeUnknown // prevents a retry
		}
		return e
	})
}

func (l conns) Change(ctx context.Context, op string, to link.Target, id link.Identity, call link.CallAs) error {
	own, ok := id.(*identity)
	if !ok {
		own = &identity{}
	}
	pair, pinned, err := l.pair(to)
	if err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	own.attempts.pinned = pinned
	return l.c.doAs(ctx, op, pair, own, call)
}

func (l conns) NewIdentity() link.Identity { return &identity{} }

func (l conns) Active(ctx context.Context, op string) (link.Node, error) {
	t, err := l.c.locator.wait(ctx)
	if err != nil {
		return nil, l.c.giveUp(op, err, nil, false)
	}
	return linkedNode{t.node}, nil
}

func (l conns) Node(address string) (link.Node, error) {
	n, err := l.c.node(address)
	if err != nil {
		return nil, err
	}
	return linkedNode{n}, nil
}

func (l conns) Addresses() []string {
	l.c.locator.mu.Lock()
	defer l.c.locator.mu.Unlock()
	out := make([]string, len(l.c.locator.nodes))
	for i, n := range l.c.locator.nodes {
		out[i] = n.address
	}
	return out
}

type linkedNode struct{ n *node }

func (l linkedNode) Address() string { return l.n.address }

func (l linkedNode) Conn() *grpc.ClientConn { return l.n.conn() }

func (l linkedNode) Error(ctx context.Context, err error) error {
	return asError(ctx, l.n.address, err)
}

func (l linkedNode) OnceError(ctx context.Context, err error) error {
	e := asError(ctx, l.n.address, err)
	if e.answered() || e.unreached {
		return e
	}
	return fmt.Errorf("%w; %w", e, ErrOutcomeUnknown)
}
