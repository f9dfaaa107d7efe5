// SPDX-License-Identifier: Apache-2.0

package inprocgrpc

import (
	"unicode/utf8"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/lockstep-mq/lockstep/proto/codec"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// item is a message in transit. It is passed by reference or encoded.
type item struct {
	passed proto.Message // nil if the message is encoded
	bytes  int           // encoded size; if passed is set, an upper bound or, for a publish response, 0 (see into)
	data   mem.BufferSlice
}

// Maker is a reusable representation of a response. It is not passed by reference: the receiver gets a message from
// MakeMessage.
type Maker interface {
	// MakeMessage creates the message, which does not refer to reused memory.
	MakeMessage() proto.Message
	// TotalBytes returns the encoded size of the message.
	TotalBytes() int
}

var wireFormat encoding.CodecV2 = codec.New() //nolint:gochecknoglobals // its only state is reusable buffers

// pack passes the usual messages of publish and consume streams by reference. Neither the sender nor the receiver may
// modify these messages. pack encodes all other messages.
func pack(v any) (item, error) {
	switch m := v.(type) {
	case *pb.PublishStreamRequest:
		if n, ok := measure(m); ok {
			return item{passed: m, bytes: n}, nil
		}
	case *pb.PublishStreamResponse:
		if succeeded(m) {
			return item{passed: m}, nil
		}
	case *pb.ConsumeRequest:
		if m.GetAttach() == nil { // a request without attach has no strings to validate
			return item{passed: m, bytes: proto.Size(m)}, nil
		}
	case Maker:
		return item{passed: m.MakeMessage(), bytes: m.TotalBytes()}, nil
	}
	return encoded(v)
}

func encoded(v any) (item, error) {
	data, err := wireFormat.Marshal(v)
	if err != nil {
		return item{}, status.Errorf(codes.Internal, "encode a message: %v", err)
	}
	return item{data: data, bytes: data.Len()}, nil
}

// into stores the message in v. It returns an error if the message is larger than limit. It must be called only
// once.
func (i *item) into(v any, limit int) error {
	if i.passed == nil {
		defer i.data.Free()
	}
	if i.bytes > limit {
		if i.passed != nil {
			i.bytes = proto.Size(i.passed)
		}
		if i.bytes > limit {
			return status.Errorf(codes.ResourceExhausted, "received message larger than max (%d vs. %d)", i.bytes, limit)
		}
	}
	if i.passed == nil {
		return decode(i.data, v)
	}
	switch from := i.passed.(type) {
	case *pb.PublishStreamRequest:
		if to, ok := v.(*codec.ReceivedPublish); ok {
			passPublish(&to.Request, from)
			return nil
		}
		if to, ok := v.(*pb.PublishStreamRequest); ok {
			passPublish(to, from)
			return nil
		}
	case *pb.PublishStreamResponse:
		if to, ok := v.(*pb.PublishStreamResponse); ok {
			to.Correlation, to.Published, to.Error, to.More, to.AcceptsMore = from.GetCorrelation(), from.GetPublished(),
				from.GetError(), from.GetMore(), from.GetAcceptsMore()
			return nil
		}
	case *pb.ConsumeRequest:
		if to, ok := v.(*pb.ConsumeRequest); ok {
			passConsume(to, from)
			return nil
		}
	case *pb.ConsumeResponse:
		if to, ok := v.(*pb.ConsumeResponse); ok {
			to.Messages, to.Confirmed, to.Attached, to.QueueId = from.GetMessages(), from.GetConfirmed(),
				from.GetAttached(), from.GetQueueId()
			to.Drained, to.DrainedCredit = from.GetDrained(), from.GetDrainedCredit()
			to.Waiting, to.Moved = from.GetWaiting(), from.GetMoved()
			to.Expired, to.Refused, to.AckTimeout = from.GetExpired(), from.GetRefused(), from.GetAckTimeout()
			return nil
		}
	}
	again, err := encoded(i.passed) // the receiver uses another message type
	if err != nil {
		return err
	}
	defer again.data.Free()
	return decode(again.data, v)
}

func decode(data mem.BufferSlice, v any) error {
	if err := wireFormat.Unmarshal(data, v); err != nil {
		return status.Errorf(codes.Internal, "decode a message: %v", err)
	}
	return nil
}

func passPublish(to, from *pb.PublishStreamRequest) {
	to.Correlation, to.Publish, to.More, to.AcceptsMore, to.Resumes = from.GetCorrelation(), from.GetPublish(),
		from.GetMore(), from.GetAcceptsMore(), from.GetResumes()
}

func passConsume(to, from *pb.ConsumeRequest) {
	to.Attach, to.Credit, to.Ack, to.Nack = from.GetAttach(), from.GetCredit(), from.GetAck(), from.GetNack()
	to.Reject, to.NackDelay, to.Confirm, to.Release = from.GetReject(), from.GetNackDelay(), from.GetConfirm(),
		from.GetRelease()
	to.Drain = from.GetDrain()
	to.Leave, to.Extend = from.GetLeave(), from.GetExtend()
}

// succeeded reports whether a response and its additional responses contain no errors.
func succeeded(m *pb.PublishStreamResponse) bool {
	if m.GetError() != nil {
		return false
	}
	for _, r := range m.GetMore() {
		if r.GetError() != nil {
			return false
		}
	}
	return true
}

// fieldBytes is the maximum overhead of a text or number field, which is nested in at most two length-delimited
// fields.
const fieldBytes = 16

// measure returns an upper bound of the encoded size of a request. ok is false if the request cannot be passed by
// reference.
func measure(m *pb.PublishStreamRequest) (bytes int, ok bool) {
	if bytes, ok = measurePublish(m.GetPublish()); !ok {
		return 0, false
	}
	for _, r := range m.GetMore() {
		n, ok := measurePublish(r.GetPublish())
		if !ok || len(r.GetMore()) > 0 {
			return 0, false
		}
		bytes += n
	}
	return bytes, true
}

func measurePublish(m *pb.PublishRequest) (bytes int, ok bool) {
	bytes = 8*fieldBytes + len(m.GetQueue()) + len(m.GetProducer().GetId())
	ok = utf8.ValidString(m.GetQueue()) && utf8.ValidString(m.GetProducer().GetId())
	for _, one := range m.GetMessages() {
		ok = ok && one != nil // nil would be encoded as an empty message
		bytes += measureMessage(one, &ok)
	}
	return bytes, ok
}

const fieldsOfMessage = 10 // number of fields, without the body, the properties and the texts

func measureMessage(m *pb.Message, ok *bool) (bytes int) {
	bytes = fieldsOfMessage*fieldBytes + len(m.GetBody())
	text := func(s string) {
		bytes += len(s) + fieldBytes
		*ok = *ok && utf8.ValidString(s)
	}
	text(m.GetMessageId())
	text(m.GetCorrelationId())
	text(m.GetReplyTo())
	text(m.GetContentType())
	text(m.GetSubject())
	text(m.GetGroup())
	for k, v := range m.GetProperties() {
		text(k)
		text(v)
	}
	for k, v := range m.GetTypedProperties() {
		text(k)
		bytes += len(v.GetBytesValue()) + fieldBytes
	}
	return bytes
}
