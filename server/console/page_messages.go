// SPDX-License-Identifier: Apache-2.0

package console

import (
	"bytes"
	"cmp"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

const (
	messagesPerPage = 50
	// previewBytes limits the size of a body preview in the table. maxBodyBytes limits the size of the body on the
	// page of a message.
	previewBytes    = 120
	maxBodyBytes    = 64 << 10
	maxMessageBytes = 256 << 20 // maximum size of a message that can be shown
	// maxSearched is the maximum number of messages that are searched for one page.
	maxSearched = 200_000
	newestFirst = "newest" // value of the parameter "order"
)

// messagesPage returns the page that shows the messages of a queue without consuming them.
func messagesPage() Page {
	return Page{
		Path: "/messages", Title: "Messages", Right: "browse", Template: "messages", Live: true, Hidden: true,
		Under: "/queues", Load: withQueues(loadMessages), Watch: withQueues(watchMessages),
		Actions: []Action{
			{
				Name: "move", Title: "Move messages", Right: "manage", Dialog: "move", Load: withQueues(loadChosen),
				Do: withQueues(moveChosen),
			},
			{
				Name: "replay", Title: "Replay dead letters", Right: "manage", Dialog: "replay", Load: withQueues(loadChosen),
				Do: withQueues(replayChosen),
			},
			{
				Name: "remove", Title: "Delete messages", Right: "manage", Dialog: "remove", Danger: true,
				Load: withQueues(loadChosen), Do: withQueues(removeChosen),
			},
		},
	}
}

func messagePage() Page {
	return Page{
		Path: "/message", Title: "Message", Right: "browse", Template: "message", Hidden: true, Under: "/queues",
		Load: withQueues(loadMessage),
	}
}

// messagesAddress selects the messages of a page.
type messagesAddress struct {
	Name, Subscription, Filter, Order string
	From, Before                      uint64 // Before is used with newestFirst
}

func messagesAt(v *View) messagesAddress {
	return messagesAddress{
		Name: v.Query.Get("name"), Subscription: v.Query.Get("subscription"),
		Filter: strings.TrimSpace(v.Query.Get("filter")), Order: v.Query.Get("order"), From: v.number("from"),
		Before: v.number("before"),
	}
}

func (a messagesAddress) values() url.Values {
	q := url.Values{"name": {a.Name}}
	set := func(name, value string) {
		if value != "" && value != "0" {
			q.Set(name, value)
		}
	}
	set("subscription", a.Subscription)
	set("filter", a.Filter)
	set("order", a.Order)
	set("from", strconv.FormatUint(a.From, 10))
	set("before", strconv.FormatUint(a.Before, 10))
	return q
}

func (a messagesAddress) String() string { return "/messages?" + a.values().Encode() }

// at returns the address of another page of the same messages.
func (a messagesAddress) at(from, before uint64) string {
	a.From, a.Before = from, before
	return a.String()
}

type messagesView struct {
	rights
	messagesAddress

	Queue       *pb.Queue
	ParentLink  string
	Rows        []messageRow
	Next, First string // addresses of other pages; may be empty
	Searched    *searchedView
	FilterError string
	Newest      string // address of the newest messages; empty if the page shows them
	DeadLetters bool   // the page contains dead letters
	Newer       newerView
	seen        uint64 // next sequence of the queue when the page was rendered
}

// searchedView describes the part of the queue that was searched for the page.
type searchedView struct {
	Scanned, Unevaluated uint64
	Link                 string // address that continues the search; empty if it is complete or the page is full
}

// newerView is the live part of the Messages page.
type newerView struct {
	Count    uint64 // number of messages published since the page was rendered
	Replaced bool   // the queue was deleted and re-created
	Link     string // address of the page
}

type messageRow struct {
	*pb.StoredMessage

	Link, Preview  string
	Reason, Origin string // set only for a dead letter
	At             time.Time
	Size           int
	Fields         []field
}

type field struct{ Name, Value string }

func loadMessages(ctx context.Context, v *View, queues pb.QueueServiceClient) (any, error) {
	name := v.Query.Get("name")
	described, err := queues.GetQueue(ctx, &pb.GetQueueRequest{Name: name})
	if err != nil {
		return nil, err
	}
	may, err := v.queueRights(ctx)
	if err != nil {
		return nil, err
	}
	d := &messagesView{
		rights: may, messagesAddress: messagesAt(v), seen: described.GetQueue().GetNextSequence(),
		Queue: described.GetQueue(), ParentLink: queueLink("/queue", name),
	}
	all, searched, err := browse(ctx, queues, &pb.BrowseRequest{
		Queue: name, Subscription: d.Subscription, FromSequence: d.From, BeforeSequence: d.Before,
		Limit: messagesPerPage + 1, MaxResponseBytes: maxMessageBytes, Filter: d.Filter, MaxScanned: maxSearched,
		Newest: d.Order == newestFirst,
	})
	switch {
	case d.Filter != "" && status.Code(err) == codes.InvalidArgument:
		d.FilterError = status.Convert(err).Message()
	case err != nil:
		return nil, err
	}
	newest := d.Order == newestFirst
	if d.Filter != "" && d.FilterError == "" {
		d.Searched = &searchedView{Scanned: searched.GetScanned(), Unevaluated: searched.GetUnevaluated()}
	}
	switch {
	case len(all) > messagesPerPage && newest:
		d.Next = d.at(0, all[messagesPerPage].GetSequence()+1)
	case len(all) > messagesPerPage:
		d.Next = d.at(all[messagesPerPage].GetSequence(), 0)
	case searched.GetFromSequence() < searched.GetBeforeSequence() && newest && d.Searched != nil:
		d.Searched.Link = d.at(0, searched.GetBeforeSequence())
	case searched.GetFromSequence() < searched.GetBeforeSequence() && d.Searched != nil:
		d.Searched.Link = d.at(searched.GetFromSequence(), 0)
	}
	all = all[:min(len(all), messagesPerPage)]
	if d.From > 1 || d.Before > 0 {
		d.First = d.at(0, 0)
	}
	for _, m := range all {
		row := messageRow{
			StoredMessage: m, At: m.GetPublishedAt().AsTime(), Size: len(m.GetMessage().GetBody()), Fields: fieldsOf(m),
			Link:    "/message?" + url.Values{"name": {name}, "sequence": {strconv.FormatUint(m.GetSequence(), 10)}}.Encode(),
			Preview: preview(m.GetMessage().GetBody()),
		}
		if l := m.GetDeadLetter(); l != nil {
			d.DeadLetters, row.Reason, row.Origin = true, deadReason(l), deadOrigin(l)
		}
		d.seen = max(d.seen, m.GetSequence()+1) // the message may have been published after the call of GetQueue
		row.Message.Body = nil
		d.Rows = append(d.Rows, row)
	}
	if d.Next != "" && d.seen > messagesPerPage && d.Filter == "" && !newest {
		d.Newest = d.at(d.seen-messagesPerPage, 0)
	}
	d.Newer.Link = d.String()
	return d, nil
}

// eventQuery returns the query of the page's event stream. It contains the position in the queue when the page
// was rendered.
func (d *messagesView) eventQuery() url.Values {
	q := d.values()
	q.Set("id", strconv.FormatUint(d.Queue.GetId(), 10))
	q.Set("seen", strconv.FormatUint(d.seen, 10))
	return q
}

// watchMessages counts the messages published since the page was rendered.
func watchMessages(ctx context.Context, v *View, queues pb.QueueServiceClient) (any, error) {
	described, err := queues.GetQueue(ctx, &pb.GetQueueRequest{Name: v.Query.Get("name")})
	if err != nil {
		return nil, err
	}
	d := newerView{Link: messagesAt(v).String()}
	next := described.GetQueue().GetNextSequence()
	d.Replaced = strconv.FormatUint(described.GetQueue().GetId(), 10) != v.Query.Get("id")
	d.Count = next - min(v.number("seen"), next)
	return d, nil
}

func deadReason(l *pb.DeadLetter) string {
	reason := strings.ToLower(strings.TrimPrefix(l.GetReason().String(), "DEAD_LETTER_REASON_"))
	return strings.ReplaceAll(reason, "_", " ")
}

func deadOrigin(l *pb.DeadLetter) string {
	return fmt.Sprintf("%s, subscription %s, sequence %d", l.GetQueue(), l.GetSubscription(), l.GetSequence())
}

func browse(
	ctx context.Context, queues pb.QueueServiceClient, req *pb.BrowseRequest,
) (all []*pb.StoredMessage, searched *pb.SearchProgress, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := queues.Browse(ctx, req)
	if err != nil {
		return nil, nil, err
	}
	for {
		resp, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return all, searched, nil
		}
		if err != nil {
			return nil, nil, err //nolint:wrapcheck // a status is shown
		}
		all = append(all, resp.GetMessages()...)
		if p := resp.GetProgress(); p != nil {
			searched = p
		}
	}
}

func preview(body []byte) string {
	more := len(body) > previewBytes
	part := body[:min(len(body), previewBytes)]
	if more { // do not split a character
		for shortest := len(part) - utf8.UTFMax; len(part) > shortest && !utf8.Valid(part); {
			part = part[:len(part)-1]
		}
	}
	if !readable(part) {
		return hex.EncodeToString(body[:min(len(body), 32)]) + " (bytes)"
	}
	text := strings.Join(strings.Fields(string(part)), " ")
	if more {
		text += "…"
	}
	return text
}

func readable(body []byte) bool {
	if !utf8.Valid(body) {
		return false
	}
	for _, r := range string(body) {
		if r < ' ' && r != '\n' && r != '\r' && r != '\t' || r == 0x7f {
			return false
		}
	}
	return true
}

func fieldsOf(s *pb.StoredMessage) (list []field) {
	m := s.GetMessage()
	add := func(name, value string) {
		if value != "" {
			list = append(list, field{name, value})
		}
	}
	at := func(name string, t *timestamppb.Timestamp) {
		if t != nil {
			add(name, t.AsTime().UTC().Format("2006-01-02T15:04:05.000Z"))
		}
	}
	add("message ID", m.GetMessageId())
	add("correlation ID", m.GetCorrelationId())
	add("reply to", m.GetReplyTo())
	add("content type", m.GetContentType())
	add("subject", m.GetSubject())
	add("group", m.GetGroup())
	if m.Priority != nil {
		add("priority", strconv.FormatUint(uint64(m.GetPriority()), 10))
	}
	at("expires at", m.GetExpiresAt())
	at("deliver at", m.GetDeliverAt())
	if l := s.GetDeadLetter(); l != nil {
		add("dead letter of", deadOrigin(l))
		add("dead-letter reason", deadReason(l))
		add("deliveries at the origin", strconv.FormatUint(uint64(l.GetDeliveries()), 10))
		at("moved at", l.GetMovedAt())
	}
	for _, name := range slices.Sorted(maps.Keys(m.GetProperties())) {
		list = append(list, field{"property " + name, m.GetProperties()[name]})
	}
	for _, name := range slices.Sorted(maps.Keys(m.GetTypedProperties())) {
		list = append(list, field{"property " + name, propertyText(m.GetTypedProperties()[name])})
	}
	return list
}

func propertyText(p *pb.PropertyValue) string {
	switch kind := p.GetKind().(type) {
	case *pb.PropertyValue_BoolValue:
		return strconv.FormatBool(kind.BoolValue) + " (bool)"
	case *pb.PropertyValue_IntValue:
		return strconv.FormatInt(kind.IntValue, 10) + " (int)"
	case *pb.PropertyValue_DoubleValue:
		return strconv.FormatFloat(kind.DoubleValue, 'g', -1, 64) + " (double)"
	case *pb.PropertyValue_BytesValue:
		return hex.EncodeToString(kind.BytesValue) + " (bytes)"
	}
	return ""
}

type messageView struct {
	rights

	Queue, ParentLink string
	ID                string // ID of the queue
	DeadLetter        bool
	Sequence          uint64
	At                time.Time
	DeliveryCount     uint32
	Size              int
	Truncated         bool // the body is truncated
	Text, JSON, Hex   string
	Fields            []field
}

func loadMessage(ctx context.Context, v *View, queues pb.QueueServiceClient) (any, error) {
	name := v.Query.Get("name")
	sequence, err := strconv.ParseUint(v.Query.Get("sequence"), 10, 64)
	if err != nil || sequence == 0 {
		return nil, invalid("The address contains no sequence.")
	}
	found, _, err := browse(ctx, queues, &pb.BrowseRequest{
		Queue: name, FromSequence: sequence, Limit: 1, MaxResponseBytes: maxMessageBytes,
	})
	if err != nil {
		return nil, err
	}
	if len(found) == 0 || found[0].GetSequence() != sequence {
		return nil, invalid(fmt.Sprintf("Queue %s has no message with sequence %d: it was acknowledged by all "+
			"subscriptions, moved, or is corrupt.", name, sequence))
	}
	may, err := v.queueRights(ctx)
	if err != nil {
		return nil, err
	}
	described, err := queues.GetQueue(ctx, &pb.GetQueueRequest{Name: name})
	if err != nil {
		return nil, err
	}
	m := found[0]
	body := m.GetMessage().GetBody()
	d := &messageView{
		rights: may, ID: strconv.FormatUint(described.GetQueue().GetId(), 10), DeadLetter: m.GetDeadLetter() != nil,
		Queue: name, ParentLink: queueLink("/messages", name), Sequence: sequence, At: m.GetPublishedAt().AsTime(),
		DeliveryCount: m.GetDeliveryCount(), Size: len(body), Fields: fieldsOf(m),
	}
	var indented bytes.Buffer
	if len(body) <= maxBodyBytes && json.Indent(&indented, body, "", "  ") == nil && len(body) > 0 {
		d.JSON = indented.String()
	}
	if len(body) > maxBodyBytes {
		body, d.Truncated = body[:maxBodyBytes], true
	}
	if readable(body) {
		d.Text = string(body)
	}
	d.Hex = hex.Dump(body)
	return d, nil
}

type chosenView struct {
	Queue, Subscription string
	Count               int
	Sequences           []string
	Queues              []string // names of some queues to choose from
}

func loadChosen(ctx context.Context, v *View, queues pb.QueueServiceClient) (any, error) {
	d := &chosenView{
		Queue: v.Query.Get("name"), Subscription: v.Query.Get("subscription"), Sequences: v.Query["sequence"],
	}
	if d.Count = len(d.Sequences); d.Count == 0 {
		return nil, invalid("No message selected.")
	}
	list, err := queues.ListQueues(ctx, &pb.ListQueuesRequest{PageSize: 200})
	if err != nil {
		return nil, err
	}
	for _, q := range list.GetQueues() {
		if q.GetName() != d.Queue {
			d.Queues = append(d.Queues, q.GetName())
		}
	}
	return d, nil
}

func chosenRanges(v *View) (list []*pb.SequenceRange, err error) {
	for _, text := range v.Query["sequence"] {
		n, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			return nil, invalid(fmt.Sprintf("%q is not a sequence.", text))
		}
		list = append(list, &pb.SequenceRange{First: n, Last: n})
	}
	return list, nil
}

type selection struct {
	queue, subscription string
	id                  uint64 // ID of the queue; 0 for the current queue with the name
	sequences           []*pb.SequenceRange
}

func chosenMessages(v *View) (*selection, error) {
	sequences, err := chosenRanges(v)
	return &selection{
		queue: v.Query.Get("name"), subscription: v.Query.Get("subscription"), sequences: sequences, id: v.number("id"),
	}, err
}

func moveChosen(ctx context.Context, v *View, queues pb.QueueServiceClient) (Done, error) {
	to := strings.TrimSpace(v.Get("to"))
	if to == "" {
		return Done{}, invalid("Enter the target queue.")
	}
	return move(ctx, v, queues, to)
}

func replayChosen(ctx context.Context, v *View, queues pb.QueueServiceClient) (Done, error) {
	return move(ctx, v, queues, "")
}

func move(ctx context.Context, v *View, queues pb.QueueServiceClient, to string) (Done, error) {
	which, err := chosenMessages(v)
	if err != nil {
		return Done{}, err
	}
	resp, err := queues.MoveMessages(ctx, &pb.MoveMessagesRequest{
		Queue: which.queue, Subscription: which.subscription, To: to, Sequences: which.sequences, QueueId: which.id,
	})
	if err != nil {
		return Done{}, err
	}
	text := fmt.Sprintf("Moved %s of %s messages to %s.", formatNumber(resp.GetMoved()),
		formatNumber(len(which.sequences)), cmp.Or(to, "their original queues"))
	if resp.GetSkipped() > 0 {
		text += fmt.Sprintf(" %d were skipped.", resp.GetSkipped())
	}
	return Done{Message: text, Goto: chosenFrom(v)}, nil
}

func chosenFrom(v *View) string { return messagesAt(v).String() }

func removeChosen(ctx context.Context, v *View, queues pb.QueueServiceClient) (Done, error) {
	which, err := chosenMessages(v)
	if err != nil {
		return Done{}, err
	}
	resp, err := queues.RemoveMessages(ctx, &pb.RemoveMessagesRequest{
		Queue: which.queue, Subscription: which.subscription, Sequences: which.sequences, QueueId: which.id,
	})
	if err != nil {
		return Done{}, err
	}
	return Done{
		Message: fmt.Sprintf("Deleted %s of %s messages.", formatNumber(resp.GetRemoved()),
			formatNumber(len(which.sequences))), Goto: chosenFrom(v),
	}, nil
}
