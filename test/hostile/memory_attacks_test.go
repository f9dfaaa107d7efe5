// SPDX-License-Identifier: Apache-2.0

//go:build unix && deep

package hostile

import (
	"context"
	"encoding/binary"
	"sync"

	"golang.org/x/net/http2"
	"google.golang.org/protobuf/proto"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// Attacks on memory make many calls on one connection, each with the maximum size of a single call.

const (
	// callsAtOnce is the node's limit of concurrent calls on a connection.
	callsAtOnce = 4096
	// partialBytes is the announced size of each partial request, and firstWindow the initial flow-control window.
	partialBytes = 64 << 20
	firstWindow  = 1 << 20
)

// memoryAttacks returns attacks that try to exhaust the node's memory.
func memoryAttacks() []attack {
	return []attack{
		{"partial requests", 1, partialRequests(16 << 10)},
		{"partial requests in small frames", 1, partialRequests(600)},
		{"more than one request", 1, moreThanOne},
		{"never-reading browsers", 1, unread(pb.QueueService_Browse_FullMethodName, func(p *plan, _ int) proto.Message {
			return &pb.BrowseRequest{Queue: p.Queue}
		})},
		{"never-reading consumers", 1, unread(pb.QueueService_Consume_FullMethodName, func(p *plan, call int) proto.Message {
			return &pb.ConsumeRequest{
				Attach: &pb.Attach{Queue: p.Queue, Subscription: p.Subscriptions[call%len(p.Subscriptions)]}, Credit: 100_000,
			}
		})},
		{"never-reading watchers", 1, unread(pb.AdminService_WatchStatus_FullMethodName, func(*plan, int) proto.Message {
			return &pb.WatchStatusRequest{}
		})},
		{"never-reading lists", 1, unread(pb.QueueService_ListQueues_FullMethodName, func(*plan, int) proto.Message {
			return &pb.ListQueuesRequest{}
		})},
	}
}

// windows are the flow-control windows of the calls.
type windows struct {
	mu    sync.Mutex // guards bytes and ended
	bytes map[uint32]int
	ended bool
	grown chan struct{} // capacity 1
}

// follow reads window updates until the connection ends.
func (w *windows) follow(h *h2, done chan<- string) {
	last := "closed"
	for {
		f, err := h.ReadFrame()
		w.mu.Lock()
		w.ended = err != nil
		switch f := f.(type) {
		case *http2.WindowUpdateFrame:
			w.bytes[f.StreamID] += int(f.Increment)
		case *http2.GoAwayFrame:
			last = "GOAWAY " + f.ErrCode.String()
		}
		w.mu.Unlock()
		select {
		case w.grown <- struct{}{}:
		default:
		}
		if err != nil {
			done <- last
			return
		}
	}
}

// take waits for a call with a window of at least the given bytes, reserves these bytes, and returns the call. It
// returns 0 when the connection or ctx has ended. The search starts after *from, which take updates.
func (w *windows) take(ctx context.Context, calls int, from *int, bytes int) uint32 {
	for {
		w.mu.Lock()
		for range calls {
			*from = (*from + 1) % calls
			if call := uint32(2**from + 1); w.bytes[call] >= bytes {
				w.bytes[call] -= bytes
				w.mu.Unlock()
				return call
			}
		}
		ended := w.ended
		w.mu.Unlock()
		if ended {
			return 0
		}
		select {
		case <-w.grown:
		case <-ctx.Done():
			return 0
		}
	}
}

// partialRequests announces a large request in each of thousands of calls, and sends all but its last bytes, in frames
// of frameBytes.
func partialRequests(frameBytes int) func(ctx context.Context, a *attacker, name string, worker int) {
	return func(ctx context.Context, a *attacker, name string, _ int) {
		h := a.connect(ctx, name)
		if h == nil {
			return
		}
		defer func() { _ = h.Close() }()
		var err error
		for i := 0; err == nil && i < callsAtOnce; i++ {
			call := uint32(2*i + 1)
			if err = h.call(call, pb.QueueService_PublishStream_FullMethodName); err == nil {
				err = h.WriteData(call, false, binary.BigEndian.AppendUint32([]byte{0}, partialBytes))
			}
		}
		fill(ctx, a, name, h, frameBytes, err)
	}
}

// moreThanOne sends more than one request in unary calls, and reads no response.
func moreThanOne(ctx context.Context, a *attacker, name string, _ int) {
	h := a.connect(ctx, name, http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
	if h == nil {
		return
	}
	defer func() { _ = h.Close() }()
	var err error
	for i := 0; err == nil && i < callsAtOnce; i++ {
		call := uint32(2*i + 1)
		if err = h.call(call, pb.AdminService_GetStatus_FullMethodName); err == nil {
			err = h.WriteData(call, false, framed(nil))
		}
	}
	fill(ctx, a, name, h, 16<<10, err)
}

// fill sends as much data as the node accepts in the calls of the connection.
func fill(ctx context.Context, a *attacker, name string, h *h2, frameBytes int, err error) {
	w := windows{bytes: make(map[uint32]int, callsAtOnce), grown: make(chan struct{}, 1)}
	for i := range callsAtOnce {
		w.bytes[uint32(2*i+1)] = firstWindow - 64
	}
	done := make(chan string, 1)
	go w.follow(h, done)
	for next := 0; err == nil; {
		call := w.take(ctx, callsAtOnce, &next, frameBytes)
		if call == 0 {
			break
		}
		err = h.WriteData(call, false, make([]byte, frameBytes))
	}
	if ctx.Err() != nil {
		a.record(name, "held until the attack ended")
		return
	}
	a.record(name, <-done)
}

// unread sends a request in each of thousands of calls, with windows that allow no response.
func unread(
	method string, request func(p *plan, call int) proto.Message,
) func(context.Context, *attacker, string, int) {
	return func(ctx context.Context, a *attacker, name string, _ int) {
		h := a.connect(ctx, name, http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
		if h == nil {
			return
		}
		defer func() { _ = h.Close() }()
		var err error
		ended := make(chan string, 1)
		go func() { ended <- h.outcome(ctx, 0) }()
		for i := 0; err == nil && i < callsAtOnce; i++ {
			call := uint32(2*i + 1)
			if err = h.call(call, method); err != nil {
				break
			}
			var message []byte
			if message, err = proto.Marshal(request(&a.plan, i)); err == nil {
				err = h.WriteData(call, false, framed(message))
			}
		}
		a.record(name, <-ended)
	}
}
