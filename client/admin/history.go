// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/lockstep-mq/lockstep/client"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// MaxHistory is the maximum period of [Client.History].
const MaxHistory = 24 * time.Hour

// History contains the recorded values of a queue, or of the pair.
type History struct {
	// Interval is the time between points: 10 seconds for a period of up to one hour, and one minute for longer periods.
	Interval time.Duration
	// Points are sorted by time. Intervals without an active node are missing, as are intervals in which the queue was
	// not recorded.
	Points []HistoryPoint
}

// HistoryPoint contains the values of one interval. Values have a precision of about seven digits.
type HistoryPoint struct {
	// At is the end of the interval, by the clock of the active node.
	At time.Time
	// Rates reports whether Published, Delivered and Acknowledged are known. The rates are averages per second over the
	// interval.
	Rates                              bool
	Published, Delivered, Acknowledged float64
	// Messages and Bytes are the number and size of the messages at the end of the interval.
	Messages, Bytes uint64
	// OldestAge is the age of the oldest unacknowledged message; 0 if no such message exists or its age is unknown.
	OldestAge time.Duration
}

// History returns the recorded values of a queue for the last period, which is at most [MaxHistory]. If queue is
// empty, it returns the totals of all queues. At most 100 queues are recorded, usually the busiest ones. The history
// is kept in memory: it is lost if both nodes restart, and after a failover, the last seconds may be missing. Each
// partition of a partitioned queue has its own history. Errors include [client.ErrQueueNotFound]; [client.ErrInvalid];
// [client.ErrRefused] with the reason QUEUE_PARTITIONED for a partitioned queue; [client.ErrInternal] with the code
// Unimplemented if the active runs release 0.1.0.
func (c *Client) History(ctx context.Context, queue string, period time.Duration) (History, error) {
	if period <= 0 || period > MaxHistory {
		return History{}, fmt.Errorf("%w: the period must be more than 0 and at most %s, not %s", client.ErrInvalid,
			MaxHistory, period)
	}
	resp, err := read(ctx, c, "get the history of "+queue, &pb.GetHistoryRequest{
		Queue: queue, Since: durationpb.New(period),
	}, pb.QueueServiceClient.GetHistory)
	if err != nil {
		return History{}, err
	}
	h := History{Interval: resp.GetInterval().AsDuration()}
	for _, p := range resp.GetPoints() {
		h.Points = append(h.Points, HistoryPoint{
			At: p.GetAt().AsTime(), Rates: p.PublishedPerSecond != nil, Published: p.GetPublishedPerSecond(),
			Delivered: p.GetDeliveredPerSecond(), Acknowledged: p.GetAcknowledgedPerSecond(), Messages: p.GetMessages(),
			Bytes: p.GetBytes(), OldestAge: p.GetOldestAge().AsDuration(),
		})
	}
	return h, nil
}
