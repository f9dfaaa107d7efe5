// SPDX-License-Identifier: Apache-2.0

//go:build unix

package cluster

import (
	"fmt"
	"reflect"

	"github.com/lockstep-mq/lockstep/client"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/test/harness/historycheck"
)

// One in describedEvery messages of a producer has standard fields and typed properties.
const describedEvery = 4

// Messages of a producer have a group if their number has the remainder groupedAt modulo describedEvery.
// groupsPerQueue is the number of groups.
const (
	groupedAt      = 2
	groupsPerQueue = 25
)

// message creates the message with the given ID and a body of sizeBytes. The body depends only on id and sizeBytes;
// see historycheck.Body.
func (w *Workload) message(id historycheck.ID, sizeBytes int) client.Message {
	m := w.fields(id)
	m.Body = historycheck.Body(id, sizeBytes)
	return m
}

// fields returns the message with the given ID, without its body.
func (w *Workload) fields(id historycheck.ID) client.Message {
	switch {
	case w.opts.Plain || id.Producer >= firstSideClient:
		return client.Message{}
	case id.N%describedEvery == groupedAt && id.Producer < historycheck.FirstApplication:
		return client.Message{Group: fmt.Sprintf("group %d", id.N/describedEvery%groupsPerQueue)}
	case id.N%describedEvery != 0:
		return client.Message{}
	}
	return client.Message{
		Subject: "subject " + id.String(), CorrelationID: fmt.Sprint(id.N),
		Properties: map[string]string{"producer": fmt.Sprint(id.Producer)},
		Values: map[string]any{
			"n": int64(id.N), "half": float64(id.N) / 2, "even": id.N%2 == 0, "id": []byte(id.String()),
		},
	}
}

// parse returns the ID of m, or ErrBody if m differs from the published message.
func (w *Workload) parse(m client.Message) (historycheck.ID, error) {
	id, err := historycheck.ParseBody(m.Body)
	if err != nil {
		return id, err
	}
	m.Body = nil
	if want := w.fields(id); !reflect.DeepEqual(m, want) {
		return id, fmt.Errorf("%w: message %v has %+v in addition to its body, and was published with %+v",
			historycheck.ErrBody, id, m, want)
	}
	return id, nil
}

// fromProto converts a message received on the plain stream to the client package's type.
func fromProto(m *pb.Message) client.Message {
	out := client.Message{
		Body: m.GetBody(), Properties: m.GetProperties(), MessageID: m.GetMessageId(),
		CorrelationID: m.GetCorrelationId(), ReplyTo: m.GetReplyTo(), ContentType: m.GetContentType(),
		Subject: m.GetSubject(), Group: m.GetGroup(),
	}
	for k, v := range m.GetTypedProperties() {
		if out.Values == nil {
			out.Values = make(map[string]any)
		}
		r := v.ProtoReflect()
		if f := r.WhichOneof(r.Descriptor().Oneofs().Get(0)); f != nil {
			out.Values[k] = r.Get(f).Interface()
		}
	}
	return out
}
