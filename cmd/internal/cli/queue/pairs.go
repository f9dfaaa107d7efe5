// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/client/admin"
	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	"github.com/lockstep-mq/lockstep/cmd/internal/pairstatus"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// maxOrdered is the maximum number of queues that a node returns in an order.
const maxOrdered = 1000

// eachPair calls fn with a client for each pair of the fleet and the name of the pair, beginning with the pair in
// --addr. Without a fleet, it calls fn once, with an empty name. Reading the addresses of the other pairs requires the
// right operate: without it, eachPair prints a warning.
func eachPair(
	ctx context.Context, env *cli.Env, fn func(ctx context.Context, pair string, c *client.Client) error,
) error {
	return env.WithTimeout(ctx, func(ctx context.Context, c *client.Client) error {
		own, others := fleetOf(ctx, env, c)
		if err := fn(ctx, own, c); err != nil {
			return err
		}
		for _, p := range others {
			connection, err := env.Connection()
			if err != nil {
				return err
			}
			connection.Addresses = strings.Join(p.GetAddresses(), ",")
			err = env.With(ctx, connection, func(ctx context.Context, c *client.Client) error {
				return fn(ctx, p.GetName(), c)
			})
			if err != nil {
				return fmt.Errorf("pair %s: %w", p.GetName(), err)
			}
		}
		return nil
	})
}

// fleetOf returns the name of the pair of a client in its fleet, and the other pairs. Without a fleet, the name is
// empty.
func fleetOf(ctx context.Context, env *cli.Env, c *client.Client) (own string, others []*pb.FleetPair) {
	active, err := c.WaitActive(ctx)
	if err != nil {
		return "", nil // fn returns the error
	}
	st, err := pairstatus.Query(ctx, c, active.Address)
	if err != nil || st.GetFleet().GetFleetId() == "" {
		return "", nil
	}
	own = st.GetFleet().GetPair()
	node, err := cli.NodeAt(c, active.Address)
	var fleet *pb.GetFleetResponse
	if err == nil {
		fleet, err = node.Fleet(ctx)
	}
	if err != nil {
		_, _ = fmt.Fprintf(env.Stderr, "WARNING: only the queues of pair %s are listed, because the other pairs are "+
			"unknown: %v\n", own, err)
		return own, nil
	}
	for _, p := range fleet.GetPairs() {
		if p.GetName() != own && len(p.GetAddresses()) > 0 {
			others = append(others, p)
		}
	}
	return own, others
}

// found is a queue with the pair that has it; the pair is empty without a fleet.
type found struct {
	admin.Queue

	pair string
}

// severalPairs is the pair of a partitioned queue in a fleet.
const severalPairs = "-"

func newFoundState(q found) queueState {
	s := newQueueState(q.Queue)
	if q.pair != severalPairs {
		s.Pair = q.pair
	}
	return s
}

// header returns the columns of a list of queues: with the pair, if there is one.
func header(list []found, columns ...string) []string {
	if inFleet(list) {
		columns = slices.Insert(columns, 1, "Pair")
	}
	return columns
}

func inFleet(list []found) bool { return len(list) > 0 && list[0].pair != "" }

// row returns the values of the columns.
func (q *found) row(values ...any) []any {
	if q.pair != "" {
		values = slices.Insert(values, 1, any(q.pair))
	}
	return values
}

// sortQueues sorts the queues of several pairs like a node.
func sortQueues(list []found, o admin.ListOptions) {
	slices.SortStableFunc(list, func(a, b found) int {
		n := compare(a.Queue, b.Queue, o.Order)
		if o.Descending {
			n = -n
		}
		return cmp.Or(n, strings.Compare(a.Name, b.Name))
	})
}

func compare(a, b admin.Queue, order admin.QueueOrder) int {
	switch order {
	case admin.OrderMessages:
		return cmp.Compare(a.Messages, b.Messages)
	case admin.OrderBytes:
		return cmp.Compare(a.Bytes, b.Bytes)
	case admin.OrderAge:
		x, y := a.Activity.OldestAt, b.Activity.OldestAt
		if x.IsZero() || y.IsZero() { // without messages, the age is 0
			return cmp.Compare(btoi(!x.IsZero()), btoi(!y.IsZero()))
		}
		return y.Compare(x)
	case admin.OrderPublished:
		return cmp.Compare(a.Activity.Published, b.Activity.Published)
	case admin.OrderDelivered:
		return cmp.Compare(a.Activity.Delivered, b.Activity.Delivered)
	case admin.OrderAcknowledged:
		return cmp.Compare(a.Activity.Acknowledged, b.Activity.Acknowledged)
	case admin.OrderConsumers:
		return cmp.Compare(a.Activity.Consumers, b.Activity.Consumers)
	default:
		return strings.Compare(a.Name, b.Name)
	}
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}
