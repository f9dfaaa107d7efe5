// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/client/internal/link"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// QueueActivity contains the rates and the lag of a queue.
type QueueActivity struct {
	// Rates reports whether Published, Delivered and Acknowledged are known. They are known only if a client has
	// requested the activity of queues within the previous 10 seconds. The rates are averages over the
	// time between two such requests, at least one second.
	Rates bool
	// Published is the number of messages published, moved or forwarded to the queue per second.
	Published float64
	// Delivered is the number of messages delivered to consumers per second, including redeliveries.
	Delivered float64
	// Acknowledged is the number of messages per second that all subscriptions have acknowledged, or that were purged,
	// expired, moved or no longer retained.
	Acknowledged float64
	// OldestAt is the time when the active accepted the oldest message that a subscription has not acknowledged. It is
	// zero if no such message exists, or while the time is unknown.
	OldestAt time.Time
	// Consumers is the number of consumers of all subscriptions.
	Consumers uint32
}

func activityFromProto(a *pb.QueueActivity) *QueueActivity {
	if a == nil {
		return nil
	}
	return &QueueActivity{
		Rates: a.PublishedPerSecond != nil, Published: a.GetPublishedPerSecond(), Delivered: a.GetDeliveredPerSecond(),
		Acknowledged: a.GetAcknowledgedPerSecond(), OldestAt: link.TimeFromProto(a.GetOldestAt()),
		Consumers: a.GetConsumers(),
	}
}

// QueueOrder is the sort key of [Client.ListQueues].
type QueueOrder int

// Values of QueueOrder.
const (
	OrderName         QueueOrder = iota // name
	OrderMessages                       // number of messages
	OrderBytes                          // size of the messages
	OrderAge                            // age of the oldest unacknowledged message
	OrderPublished                      // messages published per second
	OrderDelivered                      // messages delivered per second
	OrderAcknowledged                   // messages acknowledged per second
	OrderConsumers                      // attached consumers
)

var queueOrders = [...]string{ //nolint:gochecknoglobals // a constant
	"name", "messages", "bytes", "age", "published", "delivered", "acknowledged", "consumers",
}

// String returns the name of the sort key, such as "messages".
func (o QueueOrder) String() string {
	if o < 0 || int(o) >= len(queueOrders) {
		return fmt.Sprintf("order %d", int(o))
	}
	return queueOrders[o]
}

// QueueOrders returns the names of all sort keys.
func QueueOrders() []string { return slices.Clone(queueOrders[:]) }

// ParseQueueOrder parses a name returned by String. The error wraps [client.ErrInvalid].
func ParseQueueOrder(name string) (QueueOrder, error) {
	if at := slices.Index(queueOrders[:], name); at >= 0 {
		return QueueOrder(at), nil
	}
	return 0, fmt.Errorf("%w: order %q is none of %s", client.ErrInvalid, name, strings.Join(queueOrders[:], ", "))
}

// ListOptions configures [Client.ListQueues]. The zero value lists the first 1,000 queues by name.
type ListOptions struct {
	// Prefix and Contains restrict the result to queues with names that begin with Prefix and contain Contains. Only the
	// comparison with Contains ignores case.
	Prefix, Contains string
	// Order is the sort key; queues with equal keys are sorted by name. Descending reverses the order.
	Order      QueueOrder
	Descending bool
	// Offset is the number of queues to skip. Limit is the maximum number of queues, 1 to 1,000; 0 means 1,000.
	Offset, Limit uint32
}

// QueueList is a page of a list of queues.
type QueueList struct {
	Queues []Queue
	// Total is the number of matching queues, including those on other pages.
	Total int
	// Uncertain reports whether the order may be wrong, because the list is sorted by age and some ages are not yet
	// known. In this case, retry the call.
	Uncertain bool
}

// ListQueues returns one page of the queues of the home pair with their activity, in the order of o.Order. The node
// scans all of its queues. If the rank of a queue changes between two calls, the queue may appear on both pages or on
// neither. Errors include [client.ErrInvalid].
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
