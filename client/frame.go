// SPDX-License-Identifier: Apache-2.0

package client

import (
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/lockstep-mq/lockstep/proto/codec"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// Field numbers of lockstep.v1, all below 16, so that a tag is one byte. A test compares them with the generated code.
const (
	fieldCorrelation, fieldPublish, fieldMore, fieldAcceptsMore, fieldResumes = 1, 2, 3, 4, 5
	fieldQueue, fieldMessages, fieldProducer, fieldSplits                     = 1, 2, 3, 4
	fieldID, fieldEpoch, fieldSequence, fieldRetry                            = 1, 2, 3, 4
	fieldBody                                                                 = 1
	tagBytes                                                                  = 1
)

// frame is a pb.PublishStreamRequest with one or more requests, and implements its encoding. Unlike the generated
// type, it needs no pb.Message of about 200 bytes for each body.
type frame struct {
	parts []part
}

type part struct {
	queue    string
	id       string // producer ID
	epoch    uint32
	sequence uint64 // also the correlation ID
	retry    bool
	resumes  bool
	entries  []*Pending
	// Encoded sizes of the PublishStreamRequest, its PublishRequest and the Producer in it.
	bytes, publishBytes, producerBytes int
}

// ProtoReflect returns the equivalent request, for interceptors of the application that inspect it.
func (b *frame) ProtoReflect() protoreflect.Message { return b.request().ProtoReflect() }

func (b *frame) request() *pb.PublishStreamRequest {
	first := b.parts[0].request()
	for i := range b.parts[1:] {
		first.More = append(first.More, b.parts[1+i].request())
	}
	return first
}

func (p *part) request() *pb.PublishStreamRequest {
	var messages []*pb.Message
	for _, e := range p.entries {
		messages = e.appendMessages(messages)
	}
	return &pb.PublishStreamRequest{
		Correlation: p.sequence, AcceptsMore: true, Resumes: p.resumes,
		Publish: &pb.PublishRequest{
			Queue: p.queue, Messages: messages,
			Producer: &pb.Producer{Id: p.id, Epoch: p.epoch, Sequence: p.sequence, Retry: p.retry},
			Splits:   len(p.entries) > 1,
		},
	}
}

func (p *Pending) appendMessages(to []*pb.Message) []*pb.Message {
	if p.more == nil {
		return append(to, &pb.Message{Body: p.body})
	}
	for _, body := range p.more.bodies {
		to = append(to, &pb.Message{Body: body})
	}
	return append(to, p.more.messages...)
}

func (p *part) measure() {
	p.producerBytes = fieldBytes(len(p.id)) + numberBytes(uint64(p.epoch)) + numberBytes(p.sequence)
	if p.retry {
		p.producerBytes += numberBytes(1)
	}
	p.publishBytes = fieldBytes(len(p.queue)) + fieldBytes(p.producerBytes)
	if len(p.entries) > 1 {
		p.publishBytes += numberBytes(1)
	}
	for _, e := range p.entries {
		p.publishBytes += e.encodedBytes()
	}
	p.bytes = numberBytes(p.sequence) + fieldBytes(p.publishBytes) + numberBytes(1)
	if p.resumes {
		p.bytes += numberBytes(1)
	}
}

// EncodedBytes implements codec.Appender.
func (b *frame) EncodedBytes() int {
	n := 0
	for i := range b.parts {
		p := &b.parts[i]
		p.measure()
		if i == 0 {
			n = p.bytes
		} else {
			n += fieldBytes(p.bytes)
		}
	}
	return n
}

// AppendTo implements codec.Appender.
func (b *frame) AppendTo(o *codec.Output) {
	out := b.parts[0].appendTo(o.B)
	for i := range b.parts[1:] {
		p := &b.parts[1+i]
		out = appendLength(out, fieldMore, p.bytes)
		out = appendNumber(p.appendTo(out), fieldAcceptsMore, 1)
	}
	o.B = appendNumber(out, fieldAcceptsMore, 1)
}

// appendTo appends the encoded part without the field accepts_more.
func (p *part) appendTo(b []byte) []byte {
	if p.resumes {
		b = appendNumber(b, fieldResumes, 1)
	}
	b = appendNumber(b, fieldCorrelation, p.sequence)
	b = appendLength(b, fieldPublish, p.publishBytes)
	b = append(appendLength(b, fieldQueue, len(p.queue)), p.queue...)
	for _, e := range p.entries {
		b = e.appendTo(b)
	}
	b = appendLength(b, fieldProducer, p.producerBytes)
	b = append(appendLength(b, fieldID, len(p.id)), p.id...)
	b = appendNumber(b, fieldEpoch, uint64(p.epoch))
	b = appendNumber(b, fieldSequence, p.sequence)
	if p.retry {
		b = appendNumber(b, fieldRetry, 1)
	}
	if len(p.entries) > 1 {
		b = appendNumber(b, fieldSplits, 1)
	}
	return b
}

func (p *Pending) encodedBytes() (n int) {
	if p.more == nil {
		return fieldBytes(bodyBytes(p.body))
	}
	for _, body := range p.more.bodies {
		n += fieldBytes(bodyBytes(body))
	}
	for _, m := range p.more.messages {
		n += fieldBytes(proto.Size(m))
	}
	return n
}

func (p *Pending) appendTo(b []byte) []byte {
	if p.more == nil {
		return appendPlain(b, p.body)
	}
	for _, body := range p.more.bodies {
		b = appendPlain(b, body)
	}
	for _, m := range p.more.messages {
		b = appendMessage(b, m)
	}
	return b
}

// appendMessage appends m, encoded with the protobuf library. An error can only result from a concurrent change of
// m; the encoded length is then wrong.
func appendMessage(b []byte, m *pb.Message) []byte {
	b = appendLength(b, fieldMessages, proto.Size(m))
	encoded, err := proto.MarshalOptions{UseCachedSize: true}.MarshalAppend(b, m)
	if err != nil {
		return b
	}
	return encoded
}

// appendPlain appends a message that consists of a body only.
func appendPlain(b, body []byte) []byte {
	b = appendLength(b, fieldMessages, bodyBytes(body))
	if len(body) == 0 {
		return b
	}
	return append(appendLength(b, fieldBody, len(body)), body...)
}

func bodyBytes(body []byte) int {
	if len(body) == 0 {
		return 0
	}
	return fieldBytes(len(body))
}

func fieldBytes(n int) int { return tagBytes + protowire.SizeBytes(n) }

// numberBytes returns the encoded size of a number field in bytes. The number 0 is not encoded, so its size is 0.
func numberBytes(v uint64) int {
	if v == 0 {
		return 0
	}
	return tagBytes + protowire.SizeVarint(v)
}

func appendLength(b []byte, field protowire.Number, n int) []byte {
	return protowire.AppendVarint(append(b, byte(field<<3)|byte(protowire.BytesType)), uint64(n))
}

func appendNumber(b []byte, field protowire.Number, v uint64) []byte {
	if v == 0 {
		return b
	}
	return protowire.AppendVarint(append(b, byte(field<<3)|byte(protowire.VarintType)), v)
}
