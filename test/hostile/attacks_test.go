// SPDX-License-Identifier: Apache-2.0

//go:build unix && deep

package hostile

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"strings"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/protobuf/proto"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// flooding is the duration of one connection of a flood, unless the node ends it earlier.
const flooding = 300 * time.Millisecond

// endlessHeaders starts a call with an incomplete header block, and sends empty CONTINUATION frames indefinitely.
func endlessHeaders(ctx context.Context, a *attacker, name string, _ int) {
	h := a.connect(ctx, name)
	if h == nil {
		return
	}
	defer func() { _ = h.Close() }()
	err := h.WriteHeaders(http2.HeadersFrameParam{
		StreamID: 1, BlockFragment: h.block(pb.AdminService_GetStatus_FullMethodName),
	})
	for err == nil && ctx.Err() == nil {
		pause(ctx, 500*time.Millisecond)
		err = h.WriteContinuation(1, false, []byte{0x00}[:0])
	}
	a.record(name, end(ctx, err))
}

// headerFlood sends headers that exceed the limits: many headers, or one header in many frames.
func headerFlood(ctx context.Context, a *attacker, name string, worker int) {
	h := a.connect(ctx, name)
	if h == nil {
		return
	}
	defer func() { _ = h.Close() }()
	var fields []hpack.HeaderField
	for i := range 2000 {
		fields = append(fields, hpack.HeaderField{Name: fmt.Sprint("x-", i), Value: strings.Repeat("v", 500)})
	}
	if worker%2 == 0 {
		fields = []hpack.HeaderField{{Name: "authorization", Value: "Bearer " + strings.Repeat("e", 1<<20)}}
	}
	block := h.block(pb.AdminService_GetStatus_FullMethodName, fields...)
	const part = 16 << 10
	err := h.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block[:part]})
	for block = block[part:]; err == nil && len(block) > 0; {
		n := min(part, len(block))
		err = h.WriteContinuation(1, n == len(block), block[:n])
		block = block[n:]
	}
	a.record(name, h.outcome(ctx, 1))
}

// manyStreams opens 10,000 calls on one connection, and sends no data.
func manyStreams(ctx context.Context, a *attacker, name string, _ int) {
	h := a.connect(ctx, name)
	if h == nil {
		return
	}
	defer func() { _ = h.Close() }()
	methods := []string{
		pb.QueueService_PublishStream_FullMethodName, pb.QueueService_Consume_FullMethodName,
		pb.QueueService_Publish_FullMethodName, pb.AdminService_WatchStatus_FullMethodName,
	}
	ended := make(chan string, 1)
	go func() { ended <- h.outcome(ctx, 0) }()
	var err error
	for i := 0; err == nil && i < 10_000; i++ {
		err = h.call(uint32(2*i+1), methods[i%len(methods)])
	}
	a.record(name, <-ended)
}

// neverReads attaches to a subscription with maximum credit and a window of gigabytes, and reads nothing.
func neverReads(ctx context.Context, a *attacker, name string, worker int) {
	h := a.connect(ctx, name, http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1<<31 - 1})
	if h == nil {
		return
	}
	defer func() { _ = h.Close() }()
	request, err := proto.Marshal(&pb.ConsumeRequest{
		Attach: &pb.Attach{
			Queue: a.plan.Queue, Subscription: a.plan.Subscriptions[worker%len(a.plan.Subscriptions)],
		},
		Credit: 100_000,
	})
	if err == nil {
		err = h.WriteWindowUpdate(0, 1<<30)
	}
	if err == nil {
		err = h.call(1, pb.QueueService_Consume_FullMethodName)
	}
	if err == nil {
		err = h.WriteData(1, false, framed(request))
	}
	if err == nil {
		<-ctx.Done()
	}
	a.record(name, end(ctx, err))
}

// framed returns a message with the prefix of a gRPC message.
func framed(message []byte) []byte {
	return append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(message))), message...)
}

// oversizedFrame announces a frame of 16 MiB, and sends it.
func oversizedFrame(ctx context.Context, a *attacker, name string, _ int) {
	h := a.connect(ctx, name)
	if h == nil {
		return
	}
	defer func() { _ = h.Close() }()
	if h.call(1, pb.QueueService_Publish_FullMethodName) == nil {
		_, err := h.Conn.Write([]byte{0xff, 0xff, 0xff, byte(http2.FrameData), 0, 0, 0, 0, 1})
		for range 256 {
			if err == nil {
				_, err = h.Conn.Write(make([]byte, 1<<16))
			}
		}
	}
	a.record(name, h.outcome(ctx, 1))
}

// truncatedFrame disconnects within a frame.
func truncatedFrame(ctx context.Context, a *attacker, name string, _ int) {
	h := a.connect(ctx, name)
	if h == nil {
		return
	}
	defer func() { _ = h.Close() }()
	err := h.call(1, pb.QueueService_Publish_FullMethodName)
	if err == nil {
		_, err = h.Conn.Write([]byte{0, 0x10, 0, byte(http2.FrameData), 0, 0, 0, 0, 1, 0, 0, 0})
	}
	if err != nil {
		a.record(name, end(ctx, err))
		return
	}
	a.record(name, "left")
}

// oversizedMessage announces a message of four gigabytes, and sends as much as flow control allows.
func oversizedMessage(ctx context.Context, a *attacker, name string, _ int) {
	h := a.connect(ctx, name)
	if h == nil {
		return
	}
	defer func() { _ = h.Close() }()
	err := h.call(1, pb.QueueService_Publish_FullMethodName)
	if err == nil {
		err = h.WriteData(1, false, []byte{0, 0xff, 0xff, 0xff, 0xff})
	}
	for i := 0; err == nil && i < 3; i++ {
		err = h.WriteData(1, false, make([]byte, 16<<10))
	}
	a.record(name, h.outcome(ctx, 1))
}

// wrongToken sends calls with invalid tokens.
func wrongToken(ctx context.Context, a *attacker, name string, worker int) {
	h := a.connect(ctx, name)
	if h == nil {
		return
	}
	defer func() { _ = h.Close() }()
	tokens := []string{
		// {"alg":"none"}, an expired token, a static token, and an invalid string
		"eyJhbGciOiJub25lIn0.eyJzdWIiOiJvcGVyYXRvciIsImV4cCI6OTk5OTk5OTk5OX0.",
		"eyJhbGciOiJSUzI1NiIsImtpZCI6IjEifQ.eyJzdWIiOiJvcGVyYXRvciIsImV4cCI6MX0.c2lnbmF0dXJl",
		"lockstep_0123456789abcdef0123456789abcdef", strings.Repeat("\x7f", 1000),
	}
	for i := range 50 {
		stream := uint32(2*i + 1)
		err := h.call(stream, pb.AdminService_Checkpoint_FullMethodName,
			hpack.HeaderField{Name: "authorization", Value: "Bearer " + tokens[(worker+i)%len(tokens)]})
		if err == nil {
			err = h.WriteData(stream, true, framed(nil))
		}
		if err != nil || ctx.Err() != nil {
			return
		}
		a.record(name, h.outcome(ctx, stream))
	}
}

// rapidReset starts calls and cancels them immediately (CVE-2023-44487).
func rapidReset(ctx context.Context, a *attacker, name string, _ int) {
	h := a.connect(ctx, name)
	if h == nil {
		return
	}
	defer func() { _ = h.Close() }()
	ended := make(chan string, 1)
	go func() { ended <- h.outcome(ctx, 0) }()
	var err error
	start := time.Now()
	for stream := uint32(1); err == nil && time.Since(start) < flooding; stream += 2 {
		err = h.call(stream, pb.QueueService_PublishStream_FullMethodName)
		if err == nil {
			err = h.WriteRSTStream(stream, http2.ErrCodeCancel)
		}
	}
	flooded(a, name, h, err, ended)
}

// flooded records how a flood ended.
func flooded(a *attacker, name string, h *h2, err error, ended <-chan string) {
	if err == nil {
		select {
		case end := <-ended:
			a.record(name, end)
			return
		case <-time.After(time.Second): // frames are unread
		}
		_ = h.Close()
		<-ended
		a.record(name, "served until its end")
		return
	}
	a.record(name, <-ended)
}

func pingFlood(ctx context.Context, a *attacker, name string, _ int) {
	h := a.connect(ctx, name)
	if h == nil {
		return
	}
	defer func() { _ = h.Close() }()
	ended := make(chan string, 1)
	go func() { ended <- h.outcome(ctx, 0) }()
	var err error
	for start := time.Now(); err == nil && time.Since(start) < flooding; {
		err = h.WritePing(false, [8]byte{1})
	}
	flooded(a, name, h, err, ended)
}

// settingsFlood sends settings, and does not read their acknowledgements.
func settingsFlood(ctx context.Context, a *attacker, name string, _ int) {
	h := a.connect(ctx, name)
	if h == nil {
		return
	}
	defer func() { _ = h.Close() }()
	var err error
	for start := time.Now(); err == nil && time.Since(start) < flooding; {
		_ = h.SetWriteDeadline(time.Now().Add(flooding))
		err = h.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 16})
	}
	if err != nil {
		a.record(name, end(ctx, err))
		return
	}
	a.record(name, "served until its end")
	_, _ = io.CopyN(io.Discard, h.Conn, 1<<10)
}

// emptyFrames sends empty data frames in an accepted call, and does not end the stream.
func emptyFrames(ctx context.Context, a *attacker, name string, _ int) {
	h := a.connect(ctx, name)
	if h == nil {
		return
	}
	defer func() { _ = h.Close() }()
	ended := make(chan string, 1)
	go func() { ended <- h.outcome(ctx, 0) }()
	err := h.call(1, pb.QueueService_PublishStream_FullMethodName)
	for start := time.Now(); err == nil && time.Since(start) < flooding; {
		err = h.WriteData(1, false, nil)
	}
	flooded(a, name, h, err, ended)
}
