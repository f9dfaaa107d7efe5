// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/lockstep-mq/lockstep/amqp/wire"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// TestAllocations limits the number of allocations per message.
func TestAllocations(t *testing.T) {
	received := jmsText("hello")
	require.LessOrEqual(t, testing.AllocsPerRun(1000, func() { _, _, _ = Decode(received) }), 13.0)
	m, _, err := Decode(received)
	require.NoError(t, err)
	s, out := deliver(t, m), make([]byte, 0, 4096)
	require.Zero(t, testing.AllocsPerRun(1000, func() { out = Append(out[:0], s, published) }))
	s = &pb.StoredMessage{Message: &pb.Message{Body: []byte("x"), MessageId: "m", Ttl: durationpb.New(time.Second)}}
	require.Zero(t, testing.AllocsPerRun(1000, func() { out = Append(out[:0], s, published) }))
}

// FuzzDecode checks that a message that Decode accepts is encoded again unchanged.
func FuzzDecode(f *testing.F) {
	g := generator{rand.New(rand.NewPCG(7, 8))}
	for range 50 {
		b, _ := g.message()
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		m, _, err := Decode(b)
		if err != nil {
			var refusal *wire.Error
			if !errors.As(err, &refusal) {
				t.Fatal(err)
			}
			return
		}
		if _, err := proto.Marshal(m); err != nil {
			t.Fatal(err)
		}
		rest := b
		for len(rest) > 0 {
			code, content, err := descriptor(rest)
			if err != nil {
				t.Fatal(err)
			}
			if code > wire.SectionDeliveryAnnotations {
				break
			}
			if _, rest, err = read(content); err != nil {
				t.Fatal(err)
			}
		}
		m.ExpiresAt, m.Ttl, m.Delay = nil, nil, nil
		out := cutHeader(t, Append(nil, &pb.StoredMessage{Message: m}, time.Time{}))
		if !bytes.Equal(rest, out) {
			t.Fatalf("%x was received, %x is sent", rest, out)
		}
	})
}

func BenchmarkDecode(b *testing.B) {
	plain := wire.AppendBinary(section(nil, wire.SectionData), make([]byte, 512))
	for name, received := range map[string][]byte{"plain": plain, "jms": jmsText("hello")} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				_, _, _ = Decode(received)
			}
		})
	}
}

func BenchmarkAppend(b *testing.B) {
	m, _, err := Decode(jmsText("hello"))
	require.NoError(b, err)
	received := deliver(b, m)
	for name, s := range map[string]*pb.StoredMessage{
		"amqp": received, "grpc": {Message: &pb.Message{Body: make([]byte, 512), Properties: map[string]string{"a": "b"}}},
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			var out []byte
			for b.Loop() {
				out = Append(out[:0], s, published)
			}
		})
	}
}
