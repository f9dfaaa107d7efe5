// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"cmp"
	"context"
	"slices"
	"strings"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/client/admin"
	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
)

// maxOrdered is the maximum number of queues in a sorted list of a node.
const maxOrdered = 1000

// eachPair calls fn with a client for each pair of the fleet (cli.Env.EachPair).
func eachPair(
	ctx context.Context, env *cli.Env, fn func(ctx context.Context, pair string, c *client.Client) error,
) error {
	return env.EachPair(ctx, "queues", fn)
}

// found is a queue with the pair that has it; the pair is empty without a fleet.
type found struct {
	admin.Queue

	pair string
}

// severalPairs is displayed as the pair of a partitioned queue in a fleet.
const severalPairs = "-"

func newFoundState(q found) queueState {
	s := newQueueState(q.Queue)
	if q.pair != severalPairs {
		s.Pair = q.pair
	}
	return s
}

// header returns the columns of a list of queues, with the column of the pair in a fleet.
func header(list []found, columns ...string) []string {
	if inFleet(list) {
		columns = slices.Insert(columns, 1, "Pair")
	}
	return columns
}

func inFleet(list []found) bool { return len(list) > 0 && list[0].pair != "" }

// row returns the values of the columns of header.
func (q *found) row(values ...any) []any {
	if q.pair != "" {
		values = slices.Insert(values, 1, any(q.pair))
	}
	return values
}

// sortQueues sorts the queues of several pairs in the order that a node uses for its own queues.
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
