// SPDX-License-Identifier: Apache-2.0

package console

import (
	"cmp"
	"context"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/fieldmaskpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// queueEvery is the refresh interval of the page of a queue.
const queueEvery = 250 * time.Millisecond

const maxTestMessages = 1000

func queuePage() Page {
	h := &history{}
	return Page{
		Path: "/queue", Title: "Queue", Right: "browse", Template: "queue", Live: true, Hidden: true, Under: "/queues",
		Every: queueEvery,
		Load:  func(ctx context.Context, v *View) (any, error) { return loadQueue(ctx, v, h) },
		Actions: []Action{
			{Name: "publish", Title: "Publish", Right: "publish", Dialog: "publish", Do: withQueues(publishTest)},
			{
				Name: "configure", Title: "Configure", Right: "manage", Dialog: "configure", Load: withQueues(loadConfig),
				Do: withQueues(alterQueue),
			},
			{Name: "pause", Title: "Pause", Right: "manage", Dialog: "pause", Do: withQueues(pauseQueue)},
			{Name: "resume", Title: "Resume", Right: "manage", Dialog: "resume", Do: withQueues(resumeQueue)},
			{Name: "seek", Title: "Move subscription", Right: "manage", Dialog: "seek", Danger: true, Do: withQueues(seek)},
			{
				Name: "purge", Title: "Purge", Right: "manage", Dialog: "purge", Danger: true, Confirm: true,
				Load: withQueues(loadConfig), Do: withQueues(purgeQueue),
			},
			{
				Name: "delete", Title: "Delete queue", Right: "manage", Dialog: "delete", Danger: true, Confirm: true,
				Load: withQueues(loadConfig), Do: withQueues(deleteQueue),
			},
		},
	}
}

type queueView struct {
	queueRow
	rights

	Pair          string // if it is another pair
	MessagesLink  string
	Rates         chart
	Depth, Age    chart
	Periods       []periodLink
	Settings      []configField // only the settings that are set
	Consumers     []consumerRow
	NoConsumers   string // why the consumers are not shown
	Paused        string
	Subscriptions []subscriptionRow
	Placement     *placement // nil if it is not shown
}

type subscriptionRow struct {
	*pb.Subscription

	Messages string // address of the page with the unacknowledged messages
	Paused   string
}

type consumerRow struct {
	Connection *pb.Connection
	Stream     *pb.ConnectionStream
	Key        string
}

func loadQueue(ctx context.Context, v *View, h *history) (any, error) {
	at, err := v.place(ctx)
	if err != nil {
		return nil, err
	}
	active := at.cc
	resp, err := pb.NewQueueServiceClient(active).GetQueue(ctx, &pb.GetQueueRequest{
		Name: v.Get("name"), Activity: true,
	})
	if err != nil {
		return nil, err
	}
	q := resp.GetQueue()
	may, err := v.queueRights(ctx)
	if err != nil {
		return nil, err
	}
	d := &queueView{queueRow: newQueueRow(q), rights: may, MessagesLink: queueLink("/messages", q.GetName())}
	d.Pair = at.pair
	d.Paused = pauseText(q.GetPause())
	d.Placement = v.placement(ctx, may, q.GetName())
	d.charts(ctx, v, h)
	d.Settings = setFields(q)
	for _, sub := range q.GetSubscriptions() {
		messages := "/messages?" + url.Values{"name": {q.GetName()}, "subscription": {sub.GetName()}}.Encode()
		d.Subscriptions = append(d.Subscriptions, subscriptionRow{sub, messages, pauseText(sub.GetPause())})
	}
	d.loadConsumers(ctx, active)
	return d, nil
}

func (d *queueView) charts(ctx context.Context, v *View, h *history) {
	q, a := d.Queue, d.Queue.GetActivity()
	key, now := fmt.Sprintf("%d %s", q.GetId(), q.GetName()), time.Now()
	var age *float64
	if a.GetOldestAt() != nil {
		age = new(max(now.Sub(a.GetOldestAt().AsTime()), 0).Seconds())
	} else if q.GetMessages() == 0 {
		age = new(0.0)
	}
	h.add(key, point{now, [lineCount]*float64{
		a.PublishedPerSecond, a.DeliveredPerSecond, a.AcknowledgedPerSecond, new(float64(q.GetMessages())), age,
	}})
	points := h.points(ctx, key, q.GetName(), v.period(), v.Queues)
	d.Rates = chartOf(points, "number", 220, rateLines()...)
	d.Depth = chartOf(points, "count", 220, line{"messages", lineMessages})
	d.Age = chartOf(points, "seconds", 220, line{"oldest message", lineAge})
	d.Periods = v.periodLinks("/queue")
}

// loadConsumers loads the consumers of a queue, which requires the operate right.
func (d *queueView) loadConsumers(ctx context.Context, active grpc.ClientConnInterface) {
	list, err := pb.NewConnectionServiceClient(active).ListConnections(ctx, &pb.ListConnectionsRequest{
		Queue: d.Queue.GetName(), Limit: 200,
	})
	switch {
	case status.Code(err) == codes.PermissionDenied:
		d.NoConsumers = "Consumers are visible with the operate right."
		return
	case err != nil:
		d.NoConsumers = describe(err).Text
		return
	}
	for _, c := range list.GetConnections() {
		for i, s := range c.GetStreams() {
			if s.GetKind() == pb.ConnectionStreamKind_CONNECTION_STREAM_KIND_CONSUME &&
				len(s.GetQueues()) == 1 && s.GetQueues()[0] == d.Queue.GetName() {
				d.Consumers = append(d.Consumers, consumerRow{c, s, fmt.Sprintf("%d-%d", c.GetId(), i)})
			}
		}
	}
}

type configView struct {
	Queue  *pb.Queue
	Fields []configField
}

func loadConfig(ctx context.Context, v *View, queues pb.QueueServiceClient) (any, error) {
	resp, err := queues.GetQueue(ctx, &pb.GetQueueRequest{Name: v.Get("name")})
	if err != nil {
		return nil, err
	}
	return &configView{Queue: resp.GetQueue(), Fields: configFields(resp.GetQueue())}, nil
}

func publishTest(ctx context.Context, v *View, queues pb.QueueServiceClient) (Done, error) {
	r := formReader{v: v}
	count := max(r.number("count", maxTestMessages), 1)
	m := &pb.Message{
		Body: []byte(strings.ReplaceAll(v.Get("body"), "\r\n", "\n")), ContentType: v.Get("content_type"),
		Subject: v.Get("subject"), CorrelationId: v.Get("correlation_id"), Group: v.Get("group"),
		Ttl: r.duration("message_ttl"), Delay: r.duration("message_delay"), Properties: map[string]string{},
	}
	if v.Get("priority") != "" {
		m.Priority = proto.Uint32(uint32(r.number("priority", 9)))
	}
	if r.err != nil {
		return Done{}, r.err
	}
	for line := range strings.Lines(v.Get("properties")) {
		line = strings.TrimSpace(line)
		name, value, has := strings.Cut(line, "=")
		switch {
		case line == "":
		case !has:
			return Done{}, invalid(fmt.Sprintf("The property %q has no value: use name=value, one per line.", line))
		default:
			m.Properties[strings.TrimSpace(name)] = strings.TrimSpace(value)
		}
	}
	req := &pb.PublishRequest{Queue: v.Query.Get("name")}
	for range count {
		req.Messages = append(req.Messages, m)
	}
	resp, err := queues.Publish(ctx, req)
	if err != nil {
		return Done{}, err
	}
	if text := discarded(ctx, queues, req.GetQueue()); text != "" {
		return Done{Message: text}, nil
	}
	if count == 1 {
		return Done{Message: fmt.Sprintf("Published as sequence %d.", resp.GetFirstSequence())}, nil
	}
	return Done{Message: fmt.Sprintf("Published %s messages from sequence %d.", formatNumber(count),
		resp.GetFirstSequence())}, nil
}

// discarded returns a text if the queue discards published messages. It returns "" if the queue cannot be read.
func discarded(ctx context.Context, queues pb.QueueServiceClient, queue string) string {
	r, err := queues.GetQueue(ctx, &pb.GetQueueRequest{Name: queue})
	q, c := r.GetQueue(), r.GetQueue().GetConfig()
	if err != nil || len(q.GetSubscriptions()) > 0 || len(q.GetForwards()) > 0 ||
		c.GetRetentionAge().AsDuration() > 0 || c.GetRetentionBytes() > 0 || c.GetRetentionMessages() > 0 {
		return ""
	}
	return "Nothing was stored: queue " + queue + " has neither a subscription nor a retention."
}

func alterQueue(ctx context.Context, v *View, queues pb.QueueServiceClient) (Done, error) {
	now, err := queues.GetQueue(ctx, &pb.GetQueueRequest{Name: v.Query.Get("name")})
	if err != nil {
		return Done{}, err
	}
	config := &pb.QueueConfig{}
	proto.Merge(config, now.GetQueue().GetConfig())
	if err := readConfig(v, config, false); err != nil {
		return Done{}, err
	}
	set, reset := changedFields(now.GetQueue(), config)
	if len(set)+len(reset) > 0 {
		if _, err := queues.AlterQueue(ctx, &pb.AlterQueueRequest{
			Name: v.Query.Get("name"), Config: config, UpdateMask: &fieldmaskpb.FieldMask{Paths: set}, ResetFields: reset,
		}); err != nil {
			return Done{}, err
		}
	}
	return Done{Message: "Queue configuration saved."}, nil
}

func seek(ctx context.Context, v *View, queues pb.QueueServiceClient) (Done, error) {
	req := &pb.SeekSubscriptionRequest{
		Queue: v.Query.Get("name"), Subscription: v.Query.Get("subscription"),
	}
	value := strings.TrimSpace(v.Get("value"))
	switch v.Get("to") {
	case "earliest":
		req.To = &pb.SeekSubscriptionRequest_Position{Position: pb.StartPosition_START_POSITION_EARLIEST}
	case "latest":
		req.To = &pb.SeekSubscriptionRequest_Position{Position: pb.StartPosition_START_POSITION_LATEST}
	case "sequence":
		n, err := strconv.ParseUint(value, 10, 64)
		if err != nil || n == 0 {
			return Done{}, invalid(fmt.Sprintf("%q is not a sequence; sequences start at 1.", value))
		}
		req.To = &pb.SeekSubscriptionRequest_Sequence{Sequence: n}
	case "time":
		at, err := time.Parse(time.RFC3339, value)
		if err != nil {
			return Done{}, invalid(fmt.Sprintf("%q is not a time; use a format such as 2026-11-22T21:30:00Z.", value))
		}
		req.To = &pb.SeekSubscriptionRequest_Time{Time: timestamppb.New(at)}
	default:
		return Done{}, invalid("Choose a position for the subscription.")
	}
	resp, err := queues.SeekSubscription(ctx, req)
	if err != nil {
		return Done{}, err
	}
	return Done{Message: fmt.Sprintf("Subscription %s continues at %d, with %s pending messages.",
		cmp.Or(req.GetSubscription(), "default"), resp.GetSequence(), formatNumber(resp.GetBacklog()))}, nil
}

func confirmed(v *View) error {
	if name := v.Query.Get("name"); strings.TrimSpace(v.Get("confirm")) != name {
		return invalid("Type the name " + name + " to confirm.")
	}
	return nil
}

func pauseQueue(ctx context.Context, v *View, queues pb.QueueServiceClient) (Done, error) {
	name, sub := v.Query.Get("name"), v.Query.Get("subscription")
	publish, deliver := v.Get("publish") != "", v.Get("deliver") != ""
	if sub == "" && !publish && !deliver {
		return Done{}, invalid("Select publishing, delivery or both.")
	}
	_, err := queues.PauseQueue(ctx, &pb.PauseQueueRequest{
		Queue: name, Subscription: sub, Publish: publish, Deliver: deliver, Reason: v.Get("reason"),
	})
	if err != nil {
		return Done{}, err
	}
	return Done{Message: "Paused " + cmp.Or(sub, name) + "."}, nil
}

func resumeQueue(ctx context.Context, v *View, queues pb.QueueServiceClient) (Done, error) {
	name, sub := v.Query.Get("name"), v.Query.Get("subscription")
	_, err := queues.ResumeQueue(ctx, &pb.ResumeQueueRequest{Queue: name, Subscription: sub})
	if err != nil {
		return Done{}, err
	}
	return Done{Message: "Resumed " + cmp.Or(sub, name) + "."}, nil
}

// pauseText describes a pause. It returns "" if p is nil.
func pauseText(p *pb.QueuePause) string {
	if p == nil {
		return ""
	}
	text := "Delivery is paused"
	switch {
	case p.GetPublish() && p.GetDeliver():
		text = "Publishing and delivery are paused"
	case p.GetPublish():
		text = "Publishing is paused"
	}
	text += " since " + clockTime(p.GetPausedAt().AsTime())
	if by := p.GetPausedBy(); by != "" {
		text += " by " + by
	}
	if reason := p.GetReason(); reason != "" {
		text += ": " + reason
	}
	return text
}

func purgeQueue(ctx context.Context, v *View, queues pb.QueueServiceClient) (Done, error) {
	if err := confirmed(v); err != nil {
		return Done{}, err
	}
	resp, err := queues.PurgeQueue(ctx, &pb.PurgeQueueRequest{
		Name: v.Query.Get("name"), Subscription: v.Query.Get("subscription"),
	})
	if err != nil {
		return Done{}, err
	}
	return Done{Message: fmt.Sprintf("Purged %s messages.", formatNumber(resp.GetMessages()))}, nil
}

func deleteQueue(ctx context.Context, v *View, queues pb.QueueServiceClient) (Done, error) {
	if err := confirmed(v); err != nil {
		return Done{}, err
	}
	name := v.Query.Get("name")
	resp, err := queues.DeleteQueue(ctx, &pb.DeleteQueueRequest{Name: name})
	if err != nil {
		return Done{}, err
	}
	return Done{
		Message: fmt.Sprintf("Deleted queue %s with %s messages.", name, formatNumber(resp.GetMessages())),
		Goto:    "/queues",
	}, nil
}
