// SPDX-License-Identifier: Apache-2.0

package simetcd

import (
	"sync"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
)

// watcher is a stream of changes.
type watcher struct {
	s      *Server
	stream etcdserverpb.Watch_WatchServer
	ended  chan struct{} // closed by Restore
	once   sync.Once
	wake   chan struct{} // capacity 1; signaled after an addition to queue

	// The server's mutex guards the fields below.
	watches map[int64]*etcdserverpb.WatchCreateRequest
	last    int64 // ID
	queue   []*etcdserverpb.WatchResponse
}

func (w *watcher) end() { w.once.Do(func() { close(w.ended) }) }

func (w *watcher) pushLocked(resp *etcdserverpb.WatchResponse) {
	resp.Header = w.s.headerLocked()
	w.queue = append(w.queue, resp)
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// changed sends the events of a revision. The caller holds the server's mutex.
func (w *watcher) changed(events []*mvccpb.Event) {
	for id, r := range w.watches {
		var matching []*mvccpb.Event
		for _, ev := range events {
			if inRange(string(ev.Kv.Key), r.Key, r.RangeEnd) {
				matching = append(matching, ev)
			}
		}
		if len(matching) > 0 {
			w.pushLocked(&etcdserverpb.WatchResponse{WatchId: id, Events: matching})
		}
	}
}

// Watch implements etcdserverpb.WatchServer.
func (s *Server) Watch(stream etcdserverpb.Watch_WatchServer) error {
	w := &watcher{
		s: s, stream: stream, ended: make(chan struct{}), wake: make(chan struct{}, 1),
		watches: map[int64]*etcdserverpb.WatchCreateRequest{},
	}
	s.mu.Lock()
	s.watchers[w] = struct{}{}
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		delete(s.watchers, w)
		s.mu.Unlock()
	}()
	go w.receive()
	for {
		s.mu.Lock()
		queue := w.queue
		w.queue = nil
		s.mu.Unlock()
		for _, resp := range queue {
			if err := stream.Send(resp); err != nil {
				return err
			}
		}
		select {
		case <-w.wake:
		case <-w.ended:
			return rpctypes.ErrGRPCStopped
		case <-stream.Context().Done():
			return stream.Context().Err()
		}
	}
}

// receive executes the requests of the client until the stream ends.
func (w *watcher) receive() {
	for {
		r, err := w.stream.Recv()
		if err != nil {
			return
		}
		w.request(r)
	}
}

func (w *watcher) request(r *etcdserverpb.WatchRequest) {
	w.s.mu.Lock()
	defer w.s.mu.Unlock()
	switch r := r.RequestUnion.(type) {
	case *etcdserverpb.WatchRequest_CreateRequest:
		w.last++
		from := r.CreateRequest.StartRevision
		w.pushLocked(&etcdserverpb.WatchResponse{WatchId: w.last, Created: true})
		if from > 0 && from <= w.s.compacted {
			w.pushLocked(&etcdserverpb.WatchResponse{WatchId: w.last, Canceled: true, CompactRevision: w.s.compacted})
			return
		}
		w.watches[w.last] = r.CreateRequest
		w.replayLocked(from)
	case *etcdserverpb.WatchRequest_CancelRequest:
		delete(w.watches, r.CancelRequest.WatchId)
		w.pushLocked(&etcdserverpb.WatchResponse{WatchId: r.CancelRequest.WatchId, Canceled: true})
	case *etcdserverpb.WatchRequest_ProgressRequest:
		w.pushLocked(&etcdserverpb.WatchResponse{WatchId: -1})
	}
}

// replayLocked sends the changes since revision from, inclusive, to the last created watch; none if from is 0.
func (w *watcher) replayLocked(from int64) {
	r := w.watches[w.last]
	var events []*mvccpb.Event
	for _, ev := range w.s.data.log {
		if from > 0 && ev.Kv.ModRevision >= from && inRange(string(ev.Kv.Key), r.Key, r.RangeEnd) {
			events = append(events, ev)
		}
	}
	if len(events) > 0 {
		w.pushLocked(&etcdserverpb.WatchResponse{WatchId: w.last, Events: events})
	}
}
