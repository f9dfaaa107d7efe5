// SPDX-License-Identifier: Apache-2.0

package console

import (
	"context"
	"net/url"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/store/units"
)

const queuesPerPage = 50

func queuesPage() Page {
	return Page{
		Path: "/queues", Title: "Queues", Key: "q", Right: "browse", Template: "queues", Live: true,
		Load: withQueues(loadQueues),
		Actions: []Action{{
			Name: "create", Title: "Create queue", Right: "manage", Dialog: "create", Do: withQueues(createQueue),
		}},
	}
}

type queuesView struct {
	rights

	Columns        []column
	Rows           []queueRow
	Total          uint32
	First, Last    int
	Pair           string // if it is another pair
	Pairs          []pairLink
	Search         string
	Sort           string
	Descending     bool
	Previous, Next string // addresses of other pages; may be empty
	Uncertain      bool
	Policies       []policyRow // set only on the first page
}

type policyRow struct {
	Pattern          string
	Priority         uint32
	Defaults, Limits string
}

type column struct {
	Title, Link string
	Sorted      string // "ascending", "descending" or empty
	Numbers     bool
}

type queueRow struct {
	Queue                              *pb.Queue
	Link                               string
	Published, Delivered, Acknowledged string
	Oldest                             string
	Backlog                            uint64 // largest backlog of a subscription
	Consumers                          uint32
}

var queueSorts = []struct { //nolint:gochecknoglobals // a table
	name, title string
	order       pb.QueueOrder
	numbers     bool
}{
	{"name", "Queue", pb.QueueOrder_QUEUE_ORDER_NAME, false},
	{"messages", "Messages", pb.QueueOrder_QUEUE_ORDER_MESSAGES, true},
	{"bytes", "Size", pb.QueueOrder_QUEUE_ORDER_BYTES, true},
	{"published", "Published/s", pb.QueueOrder_QUEUE_ORDER_PUBLISHED, true},
	{"delivered", "Delivered/s", pb.QueueOrder_QUEUE_ORDER_DELIVERED, true},
	{"acknowledged", "Acknowledged/s", pb.QueueOrder_QUEUE_ORDER_ACKNOWLEDGED, true},
	{"age", "Oldest", pb.QueueOrder_QUEUE_ORDER_AGE, true},
	{"consumers", "Consumers", pb.QueueOrder_QUEUE_ORDER_CONSUMERS, true},
}

func loadQueues(ctx context.Context, v *View, queues pb.QueueServiceClient) (any, error) {
	may, err := v.queueRights(ctx)
	if err != nil {
		return nil, err
	}
	at, err := v.place(ctx)
	if err != nil {
		return nil, err
	}
	d := &queuesView{
		rights: may, Pair: at.pair, Pairs: at.pairLinks(), Search: v.Query.Get("search"), Sort: v.Query.Get("sort"),
		Descending: v.Query.Get("order") == "descending",
	}
	page, _ := strconv.Atoi(v.Query.Get("page"))
	page = min(max(page, 1), 1<<20)
	req := &pb.ListQueuesRequest{
		Contains: d.Search, Descending: d.Descending, Offset: uint32(page-1) * queuesPerPage, PageSize: queuesPerPage,
		Activity: true,
	}
	for _, s := range queueSorts {
		if s.name == d.Sort {
			req.Order = s.order
		}
	}
	if req.GetOrder() == pb.QueueOrder_QUEUE_ORDER_UNSPECIFIED {
		d.Sort = "name"
	}
	resp, err := queues.ListQueues(ctx, req)
	if err != nil {
		return nil, err
	}
	d.Total, d.Uncertain = resp.GetTotal(), resp.GetOrderUncertain()
	d.First = int(req.GetOffset()) + 1
	d.Last = d.First + len(resp.GetQueues()) - 1
	if page > 1 {
		d.Previous = d.link(d.Sort, d.Descending, page-1)
	}
	if d.Last < int(d.Total) && len(resp.GetQueues()) > 0 {
		d.Next = d.link(d.Sort, d.Descending, page+1)
	}
	if page == 1 && d.Search == "" {
		if err := d.loadPolicies(ctx, queues); err != nil {
			return nil, err
		}
	}
	d.columns()
	for _, q := range resp.GetQueues() {
		d.Rows = append(d.Rows, newQueueRow(q))
	}
	return d, nil
}

func (d *queuesView) loadPolicies(ctx context.Context, queues pb.QueueServiceClient) error {
	list, err := queues.ListPolicies(ctx, &pb.ListPoliciesRequest{})
	if err != nil && status.Code(err) != codes.Unimplemented { // release 0.1.0 has no policies
		return err
	}
	text := func(c *pb.QueueConfig) string {
		var parts []string
		for _, f := range setFields(&pb.Queue{Config: c}) {
			if f.Check {
				f.Value = "yes"
			}
			parts = append(parts, f.Label+": "+f.Value)
		}
		return strings.Join(parts, ", ")
	}
	for _, p := range list.GetPolicies() {
		d.Policies = append(d.Policies, policyRow{
			Pattern: p.GetPattern(), Priority: p.GetPriority(), Defaults: text(p.GetDefaults()), Limits: text(p.GetLimits()),
		})
	}
	return nil
}

func (d *queuesView) link(sort string, descending bool, page int) string {
	q := url.Values{}
	if d.Pair != "" {
		q.Set("pair", d.Pair)
	}
	if d.Search != "" {
		q.Set("search", d.Search)
	}
	if sort != "name" || descending {
		q.Set("sort", sort)
	}
	if descending {
		q.Set("order", "descending")
	}
	if page > 1 {
		q.Set("page", strconv.Itoa(page))
	}
	if len(q) == 0 {
		return "/queues"
	}
	return "/queues?" + q.Encode()
}

func (d *queuesView) columns() {
	for _, s := range queueSorts {
		c := column{Title: s.title, Numbers: s.numbers}
		descending := s.numbers // with numbers, the largest values come first
		if s.name == d.Sort {
			c.Sorted, descending = "ascending", !d.Descending
			if d.Descending {
				c.Sorted = "descending"
			}
		}
		c.Link = d.link(s.name, descending, 1)
		d.Columns = append(d.Columns, c)
	}
}

func newQueueRow(q *pb.Queue) queueRow {
	a := q.GetActivity()
	row := queueRow{
		Queue: q, Link: queueLink("/queue", q.GetName()), Consumers: a.GetConsumers(),
		Published: rateText(a.PublishedPerSecond), Delivered: rateText(a.DeliveredPerSecond),
		Acknowledged: rateText(a.AcknowledgedPerSecond), Oldest: "–",
	}
	if a.GetOldestAt() != nil {
		row.Oldest = units.Age(max(time.Since(a.GetOldestAt().AsTime()), 0))
	}
	for _, s := range q.GetSubscriptions() {
		row.Backlog = max(row.Backlog, s.GetBacklog())
	}
	return row
}

func rateText(perSecond *float64) string {
	if perSecond == nil {
		return "–"
	}
	return units.Rate(*perSecond)
}

func queueLink(path, name string) string { return path + "?" + url.Values{"name": {name}}.Encode() }

func createQueue(ctx context.Context, v *View, queues pb.QueueServiceClient) (Done, error) {
	name := strings.TrimSpace(v.Get("name"))
	if name == "" {
		return Done{}, invalid("Enter a queue name.")
	}
	config := &pb.QueueConfig{}
	if err := readConfig(v, config, true); err != nil {
		return Done{}, err
	}
	req := &pb.CreateQueueRequest{
		Name: name, Config: config, Subscriptions: words(v.Get("subscriptions")),
	}
	if _, err := queues.CreateQueue(ctx, req); err != nil {
		return Done{}, err
	}
	return Done{Message: "Queue " + name + " created.", Goto: queueLink("/queue", name)}, nil
}
