// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// QueueActivity is what happens in a queue.
type QueueActivity struct {
	// Rates are known if somebody has asked for the activity of queues in the 10 seconds before; the next three then
	// are averages of the last second or two.
	Rates bool
	// Published is how many messages were published, moved or forwarded to the queue, per second.
	Published float64
	// Delivered is how many were given to consumers per second, redelivered ones among them.
	Delivered float64
	// Acknowledged is how many all subscriptions were done with, per second.
	Acknowledged float64
	// OldestAt is when the active accepted the oldest message that some subscription has still to acknowledge; the zero
	// time if there is none, or while it is not known.
	OldestAt time.Time
	// Consumers of all subscriptions.
	Consumers uint32
}

func activityFromProto(a *pb.QueueActivity) *QueueActivity {
	if a == nil {
		return nil
	}
	return &QueueActivity{
		Rates: a.PublishedPerSecond != nil, Published: a.GetPublishedPerSecond(), Delivered: a.GetDeliveredPerSecond(),
		Acknowledged: a.GetAcknowledgedPerSecond(), OldestAt: timeFromProto(a.GetOldestAt()), Consumers: a.GetConsumers(),
	}
}

// QueueOrder is what ListQueues sorts by.
type QueueOrder int

// Values of QueueOrder.
const (
	OrderName         QueueOrder = iota // names
	OrderMessages                       // the number of messages
	OrderBytes                          // their bytes
	OrderAge                            // the age of the oldest message
	OrderPublished                      // messages published per second
	OrderDelivered                      // messages delivered per second
	OrderAcknowledged                   // messages acknowledged per second
	OrderConsumers                      // attached consumers
)

// queueOrders are the names of the orders.
var queueOrders = [...]string{ //nolint:gochecknoglobals // a constant
	"name", "messages", "bytes", "age", "published", "delivered", "acknowledged", "consumers",
}

// String gives the name that the command line uses.
func (o QueueOrder) String() string {
	if o < 0 || int(o) >= len(queueOrders) {
		return fmt.Sprintf("order %d", int(o))
	}
	return queueOrders[o]
}

// QueueOrders are the names of all orders.
func QueueOrders() []string { return slices.Clone(queueOrders[:]) }

// ParseQueueOrder reads what String gives. The error wraps ErrInvalid.
func ParseQueueOrder(name string) (QueueOrder, error) {
	if at := slices.Index(queueOrders[:], name); at >= 0 {
		return QueueOrder(at), nil
	}
	return 0, fmt.Errorf("%w: order %q is none of %s", ErrInvalid, name, strings.Join(queueOrders[:], ", "))
}

// ListOptions of ListQueues. The zero value is for the first 1,000 queues by name.
type ListOptions struct {
	// Prefix that the names begin with, and a text that they Contain, whatever the case of its letters.
	Prefix, Contains string
	// Order of the queues; ties are by name. Descending: the largest, the oldest, or the last name first.
	Order      QueueOrder
	Descending bool
	// Offset is how many queues to leave out, Limit how many to return at most: 1 to 1,000; 0 means 1,000.
	Offset, Limit uint32
}

// QueueList is a part of a list of queues.
type QueueList struct {
	// Queues with their Activity.
	Queues []Queue
	// Total is how many there are of those that were asked for, with those that were left out.
	Total int
	// Uncertain: ordered by age, and some ages were not known yet, so that the order may be wrong. Asking again helps.
	Uncertain bool
}

// ListQueues lists queues with what happens in them, in any order. It is made for tables: the node looks at all of its
// queues for it, once a second for all that ask. A queue that changes its place between two calls may be in both of
// them, or in none. Errors: ErrInvalid, ErrUnavailable.
func (c *Client) ListQueues(ctx context.Context, o ListOptions) (QueueList, error) {
	req := &pb.ListQueuesRequest{
		Prefix: o.Prefix, Contains: o.Contains, Order: pb.QueueOrder(o.Order) + pb.QueueOrder_QUEUE_ORDER_NAME,
		Descending: o.Descending, Offset: o.Offset, PageSize: o.Limit, Activity: true,
	}
	resp, err := read(ctx, c, "list queues", req, pb.QueueServiceClient.ListQueues)
	list := QueueList{Total: int(resp.GetTotal()), Uncertain: resp.GetOrderUncertain()}
	for _, q := range resp.GetQueues() {
		list.Queues = append(list.Queues, queueFromProto(q))
	}
	return list, err
}
