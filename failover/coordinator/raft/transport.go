// SPDX-License-Identifier: Apache-2.0

package raft

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	hraft "github.com/hashicorp/raft"
)

const (
	retryMin = 10 * time.Millisecond
	retryMax = 100 * time.Millisecond
)

// errDiskStalled is returned instead of a heartbeat while this voter's disk does not answer.
var errDiskStalled = errors.New("the disk under the voter's log does not answer")

// transport is raft's, but for four things: it says which voter it means (see handshake); it goes on trying as long as
// a voter cannot be reached, since the library would wait up to ten seconds before it tries again, and for so long a
// voter that is back would not count; a leader whose disk does not answer falls silent, so that another is elected; and
// what other voters promise is noted before raft counts it (see sighting).
type transport struct {
	*hraft.NetworkTransport

	seen    *sightings
	inbound chan hraft.RPC
	wg      sync.WaitGroup

	// whether this voter still leads in the term, and id is one of its followers
	leads   func(term uint64, id hraft.ServerID) bool
	stalled func() bool
	closed  chan struct{}
	once    sync.Once
	beats   sync.RWMutex // read-held while a heartbeat is answered

	mu      sync.Mutex // guards what follows
	contact map[hraft.ServerID]time.Time
}

var (
	_ hraft.Transport   = (*transport)(nil)
	_ hraft.WithPreVote = (*transport)(nil)
	_ hraft.WithClose   = (*transport)(nil)
)

// newTransport serves raft on the port and dials by d.
func newTransport(p *port, d *dialer, seen *sightings, limit time.Duration, log raftLog) *transport {
	t := &transport{
		NetworkTransport: hraft.NewNetworkTransportWithConfig(&hraft.NetworkTransportConfig{
			Stream: streamLayer{inbox: p.raft, d: d}, MaxPool: 2, Timeout: limit, Logger: log,
			// no pipeline, which would be a second way to the others; there is nothing to be gained with one small
			// record
			MaxRPCsInFlight: 1,
		}),
		seen: seen, inbound: make(chan hraft.RPC),
		closed: make(chan struct{}), contact: make(map[hraft.ServerID]time.Time),
	}
	t.wg.Go(t.receive)
	return t
}

// Consumer implements raft.Transport.
func (t *transport) Consumer() <-chan hraft.RPC { return t.inbound }

// receive hands on what other voters ask of this one, heartbeats excepted.
func (t *transport) receive() {
	for {
		select {
		case rpc := <-t.NetworkTransport.Consumer():
			if err := t.note(rpc); err != nil {
				rpc.Respond(nil, err)
				continue
			}
			select {
			case t.inbound <- rpc:
			case <-t.closed:
				return
			}
		case <-t.closed:
			return
		}
	}
}

// note notes what a request says of the one who sends it.
func (t *transport) note(rpc hraft.RPC) error {
	switch r := rpc.Command.(type) {
	case *hraft.AppendEntriesRequest:
		if len(r.Entries) > 0 {
			return t.seen.led(r.Term, string(r.ID))
		}
	case *hraft.RequestVoteRequest:
		return t.seen.saw(string(r.ID), sighting{Term: r.Term}, lazily)
	}
	return nil
}

// Close implements raft.WithClose.
func (t *transport) Close() error {
	t.once.Do(func() { close(t.closed) })
	t.wg.Wait()
	err := t.NetworkTransport.Close()
	t.CloseStreams() // Close leaves pooled connections open
	return err
}

// SetHeartbeatHandler implements raft.Transport.
func (t *transport) SetHeartbeatHandler(handle func(hraft.RPC)) {
	if handle == nil {
		t.NetworkTransport.SetHeartbeatHandler(nil)
		return
	}
	t.NetworkTransport.SetHeartbeatHandler(func(rpc hraft.RPC) {
		t.beats.RLock()
		defer t.beats.RUnlock()
		handle(rpc)
	})
}

// settle waits for the heartbeats that are being answered. The library answers them in goroutines that its Shutdown
// does not wait for, and panics in one of them if it cannot write the term any more; after Shutdown it begins no other.
func (t *transport) settle() {
	t.beats.Lock()
	t.beats.Unlock() //nolint:staticcheck,gocritic // only to wait
}

// lastContact is when a voter has last answered this one as its leader.
func (t *transport) lastContact(id string) time.Time {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.contact[hraft.ServerID(id)]
}

// AppendEntries implements raft.Transport.
func (t *transport) AppendEntries(
	id hraft.ServerID, target hraft.ServerAddress, args *hraft.AppendEntriesRequest, resp *hraft.AppendEntriesResponse,
) error {
	heartbeat := args.PrevLogEntry == 0 && args.PrevLogTerm == 0 && len(args.Entries) == 0 &&
		args.LeaderCommitIndex == 0
	for wait := retryMin; ; wait = min(2*wait, retryMax) {
		if t.stalled() {
			return errDiskStalled
		}
		err := t.NetworkTransport.AppendEntries(id, named(id, target), args, resp)
		if err == nil {
			t.mu.Lock()
			t.contact[id] = time.Now()
			t.mu.Unlock()
			return t.answered(string(id), args, resp)
		}
		if heartbeat || !t.leads(args.Term, id) {
			return err
		}
		select {
		case <-time.After(wait):
		case <-t.closed:
			return err
		}
	}
}

// answered notes what a follower has promised.
func (t *transport) answered(id string, args *hraft.AppendEntriesRequest, resp *hraft.AppendEntriesResponse) error {
	if !resp.Success || len(args.Entries) == 0 {
		return t.seen.saw(id, sighting{Term: resp.Term}, lazily)
	}
	acked := sighting{Term: args.Term, AckTerm: args.Term, Acked: args.PrevLogEntry + uint64(len(args.Entries))}
	return t.seen.saw(id, acked, shortly)
}

// RequestVote implements raft.Transport.
func (t *transport) RequestVote(
	id hraft.ServerID, target hraft.ServerAddress, args *hraft.RequestVoteRequest, resp *hraft.RequestVoteResponse,
) error {
	if err := t.NetworkTransport.RequestVote(id, named(id, target), args, resp); err != nil {
		return err
	}
	if resp.Granted {
		return t.seen.saw(string(id), sighting{Term: args.Term, Voted: args.Term}, atOnce)
	}
	return t.seen.saw(string(id), sighting{Term: resp.Term}, lazily)
}

// RequestPreVote implements raft.WithPreVote.
func (t *transport) RequestPreVote(
	id hraft.ServerID, target hraft.ServerAddress, args *hraft.RequestPreVoteRequest,
	resp *hraft.RequestPreVoteResponse,
) error {
	return t.NetworkTransport.RequestPreVote(id, named(id, target), args, resp)
}

// InstallSnapshot implements raft.Transport.
func (t *transport) InstallSnapshot(
	id hraft.ServerID, target hraft.ServerAddress, args *hraft.InstallSnapshotRequest,
	resp *hraft.InstallSnapshotResponse, data io.Reader,
) error {
	return t.NetworkTransport.InstallSnapshot(id, named(id, target), args, resp, data)
}

// TimeoutNow implements raft.Transport.
func (t *transport) TimeoutNow(
	id hraft.ServerID, target hraft.ServerAddress, args *hraft.TimeoutNowRequest, resp *hraft.TimeoutNowResponse,
) error {
	return t.NetworkTransport.TimeoutNow(id, named(id, target), args, resp)
}

// named puts the id into the address, by which the library keeps its connections: one to the former owner of an address
// is not used for its successor.
func named(id hraft.ServerID, target hraft.ServerAddress) hraft.ServerAddress {
	return hraft.ServerAddress(id) + "@" + target
}

// streamLayer implements raft.StreamLayer on a port.
type streamLayer struct {
	*inbox

	d *dialer
}

// Dial implements raft.StreamLayer.
func (s streamLayer) Dial(target hraft.ServerAddress, timeout time.Duration) (net.Conn, error) {
	id, addr, _ := strings.Cut(string(target), "@")
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	return s.d.connect(ctx, kindRaft, id, addr)
}

// stopwatch tells for how long a call that is under way has not ended.
type stopwatch struct {
	since atomic.Int64 // when the call was begun, in nanoseconds since began; 0: none is under way
	began time.Time
}

func (s *stopwatch) start() { s.since.Store(int64(time.Since(s.began)) + 1) }

func (s *stopwatch) stop() { s.since.Store(0) }

// elapsed is 0 if no call is under way.
func (s *stopwatch) elapsed() time.Duration {
	if since := s.since.Load(); since != 0 {
		return time.Since(s.began) - time.Duration(since)
	}
	return 0
}

// watchedLog notes since when the disk owes an answer.
type watchedLog struct {
	hraft.LogStore

	writing stopwatch
	// stuck holds up writes until it is closed. Only tests set it.
	stuck atomic.Pointer[chan struct{}]
}

func watchLog(l hraft.LogStore) *watchedLog {
	return &watchedLog{LogStore: l, writing: stopwatch{began: time.Now()}}
}

// StoreLogs implements raft.LogStore.
func (w *watchedLog) StoreLogs(logs []*hraft.Log) error {
	w.writing.start()
	defer w.writing.stop()
	if stuck := w.stuck.Load(); stuck != nil {
		<-*stuck
	}
	return w.LogStore.StoreLogs(logs)
}
