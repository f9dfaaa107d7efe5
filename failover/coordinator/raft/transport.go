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

// errDiskStalled is returned while this voter's disk is stalled: for reads that time out, and for messages that the
// leader does not send to its followers.
var errDiskStalled = errors.New("disk of the raft log is stalled")

// transport extends the raft library's transport. It sends the ID of the intended voter (see handshake). It retries
// an unreachable voter continuously. A leader with a stalled disk stops sending. The progress of other voters is
// recorded before raft processes it (see progress.go). The transport also records which requests were accepted (see
// awaitMajority).
type transport struct {
	*hraft.NetworkTransport

	seen    *progressStore
	inbound chan hraft.RPC
	wg      sync.WaitGroup

	// leads reports whether this voter still leads in the term, and id is one of its followers.
	leads func(term uint64, id hraft.ServerID) bool
	// follows reports whether this voter is a follower in the term.
	follows    func(term uint64) bool
	stalled    func() bool
	closed     chan struct{}
	once       sync.Once
	heartbeats sync.RWMutex // read-locked while a heartbeat is being handled

	mu       sync.Mutex // guards the fields below
	contact  map[hraft.ServerID]time.Time
	begun    uint64 // number of AppendEntries requests that were begun
	accepted map[hraft.ServerID]acceptance
	news     chan struct{} // closed and replaced when accepted changes
}

// acceptance is the newest AppendEntries request that a voter has accepted.
type acceptance struct {
	term   uint64
	number uint64 // requests are numbered from 1 in the order in which they were begun
}

var (
	_ hraft.Transport   = (*transport)(nil)
	_ hraft.WithPreVote = (*transport)(nil)
	_ hraft.WithClose   = (*transport)(nil)
)

func newTransport(p *port, d *dialer, seen *progressStore, limit time.Duration, log raftLog) *transport {
	t := &transport{
		NetworkTransport: hraft.NewNetworkTransportWithConfig(&hraft.NetworkTransportConfig{
			Stream: streamLayer{inbox: p.raft, d: d}, MaxPool: 2, Timeout: limit, Logger: log,
			// No pipelining, which would add a second send path without a benefit for a small record.
			MaxRPCsInFlight: 1,
		}),
		seen: seen, inbound: make(chan hraft.RPC),
		closed: make(chan struct{}), contact: make(map[hraft.ServerID]time.Time),
		accepted: make(map[hraft.ServerID]acceptance), news: make(chan struct{}),
	}
	t.wg.Go(t.receive)
	return t
}

func (t *transport) Consumer() <-chan hraft.RPC { return t.inbound }

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

func (t *transport) note(rpc hraft.RPC) error {
	switch r := rpc.Command.(type) {
	case *hraft.AppendEntriesRequest:
		if len(r.Entries) > 0 {
			return t.seen.led(r.Term, string(r.ID))
		}
	case *hraft.RequestVoteRequest:
		return t.seen.record(string(r.ID), peerProgress{Term: r.Term}, urgencyLow)
	}
	return nil
}

func (t *transport) Close() error {
	t.once.Do(func() { close(t.closed) })
	t.wg.Wait()
	err := t.NetworkTransport.Close()
	t.CloseStreams() // NetworkTransport.Close leaves pooled connections open
	return err
}

// SetHeartbeatHandler sets the function that handles heartbeats of the current term, without raft's main goroutine,
// which may be writing to the disk. The main goroutine handles all other heartbeats, unless a stalled disk blocks it.
// Unless the disk is stalled, a heartbeat that begins a term is not passed to handle: it could be delayed until the
// main goroutine has voted or stored entries in a newer term, and would then lower the term of this voter.
func (t *transport) SetHeartbeatHandler(handle func(hraft.RPC)) {
	if handle == nil {
		t.NetworkTransport.SetHeartbeatHandler(nil)
		return
	}
	t.NetworkTransport.SetHeartbeatHandler(func(rpc hraft.RPC) {
		if r, is := rpc.Command.(*hraft.AppendEntriesRequest); !is || !t.follows(r.Term) && !t.stalled() {
			select {
			case t.inbound <- rpc:
			case <-t.closed:
				rpc.Respond(nil, hraft.ErrTransportShutdown)
			}
			return
		}
		t.heartbeats.RLock()
		defer t.heartbeats.RUnlock()
		handle(rpc)
	})
}

// awaitHeartbeats waits for heartbeats in progress, and must be called after Shutdown. The library's Shutdown does not
// wait for their goroutines, one of which panics if it can no longer write the term.
func (t *transport) awaitHeartbeats() {
	t.heartbeats.Lock()
	t.heartbeats.Unlock() //nolint:staticcheck,gocritic // only to wait
}

func (t *transport) lastContact(id string) time.Time {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.contact[hraft.ServerID(id)]
}

// begin returns the number of a request that is about to be sent.
func (t *transport) begin() uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.begun++
	return t.begun
}

func (t *transport) lastBegun() uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.begun
}

// responded records a response to the request with this number. A voter accepts a request only if it knows no newer
// term.
func (t *transport) responded(id hraft.ServerID, term, number uint64, success bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.contact[id] = time.Now()
	last := t.accepted[id]
	if !success || term < last.term || term == last.term && number < last.number {
		return
	}
	t.accepted[id] = acceptance{term: term, number: number}
	close(t.news)
	t.news = make(chan struct{})
}

// acceptedAfter returns the voters that have accepted a request of the term with a number higher than after. It also
// returns a channel that is closed when there may be more.
func (t *transport) acceptedAfter(term, after uint64) (map[hraft.ServerID]bool, <-chan struct{}) {
	t.mu.Lock()
	defer t.mu.Unlock()
	ids := make(map[hraft.ServerID]bool, len(t.accepted))
	for id, a := range t.accepted {
		if a.term == term && a.number > after {
			ids[id] = true
		}
	}
	return ids, t.news
}

func (t *transport) AppendEntries(
	id hraft.ServerID, target hraft.ServerAddress, args *hraft.AppendEntriesRequest, resp *hraft.AppendEntriesResponse,
) error {
	heartbeat := args.PrevLogEntry == 0 && args.PrevLogTerm == 0 && len(args.Entries) == 0 &&
		args.LeaderCommitIndex == 0
	for wait := retryMin; ; wait = min(2*wait, retryMax) {
		if t.stalled() {
			return errDiskStalled
		}
		number := t.begin()
		err := t.NetworkTransport.AppendEntries(id, named(id, target), args, resp)
		if err == nil {
			t.responded(id, args.Term, number, resp.Success)
			return t.recordResponse(string(id), args, resp)
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

func (t *transport) recordResponse(
	id string, args *hraft.AppendEntriesRequest, resp *hraft.AppendEntriesResponse,
) error {
	if !resp.Success || len(args.Entries) == 0 {
		return t.seen.record(id, peerProgress{Term: resp.Term}, urgencyLow)
	}
	acked := peerProgress{Term: args.Term, AckTerm: args.Term, Acked: args.PrevLogEntry + uint64(len(args.Entries))}
	return t.seen.record(id, acked, urgencyNormal)
}

func (t *transport) RequestVote(
	id hraft.ServerID, target hraft.ServerAddress, args *hraft.RequestVoteRequest, resp *hraft.RequestVoteResponse,
) error {
	if err := t.NetworkTransport.RequestVote(id, named(id, target), args, resp); err != nil {
		return err
	}
	if resp.Granted {
		return t.seen.record(string(id), peerProgress{Term: args.Term, Voted: args.Term}, urgencyImmediate)
	}
	return t.seen.record(string(id), peerProgress{Term: resp.Term}, urgencyLow)
}

func (t *transport) RequestPreVote(
	id hraft.ServerID, target hraft.ServerAddress, args *hraft.RequestPreVoteRequest,
	resp *hraft.RequestPreVoteResponse,
) error {
	return t.NetworkTransport.RequestPreVote(id, named(id, target), args, resp)
}

func (t *transport) InstallSnapshot(
	id hraft.ServerID, target hraft.ServerAddress, args *hraft.InstallSnapshotRequest,
	resp *hraft.InstallSnapshotResponse, data io.Reader,
) error {
	return t.NetworkTransport.InstallSnapshot(id, named(id, target), args, resp, data)
}

func (t *transport) TimeoutNow(
	id hraft.ServerID, target hraft.ServerAddress, args *hraft.TimeoutNowRequest, resp *hraft.TimeoutNowResponse,
) error {
	return t.NetworkTransport.TimeoutNow(id, named(id, target), args, resp)
}

// named returns the address prefixed with the voter ID. The library uses the result as its key for connections, so
// that a connection to a former voter is not used for its successor at the same address.
func named(id hraft.ServerID, target hraft.ServerAddress) hraft.ServerAddress {
	return hraft.ServerAddress(id) + "@" + target
}

type streamLayer struct {
	*inbox

	d *dialer
}

// Dial ignores its timeout parameter, which is the timeout of a request, and uses the limits of connect.
func (s streamLayer) Dial(target hraft.ServerAddress, _ time.Duration) (net.Conn, error) {
	id, addr, _ := strings.Cut(string(target), "@")
	return s.d.connect(context.Background(), kindRaft, id, addr)
}

type stopwatch struct {
	since atomic.Int64 // start of the call, in nanoseconds since began; 0 if none
	began time.Time
}

func (s *stopwatch) start() { s.since.Store(int64(time.Since(s.began)) + 1) }

func (s *stopwatch) stop() { s.since.Store(0) }

// elapsed returns the duration of the call in progress; 0 if none.
func (s *stopwatch) elapsed() time.Duration {
	if since := s.since.Load(); since != 0 {
		return time.Since(s.began) - time.Duration(since)
	}
	return 0
}

type watchedLog struct {
	hraft.LogStore

	writing stopwatch
	// stuck, if not nil, blocks writes until it is closed. Only tests set it.
	stuck atomic.Pointer[chan struct{}]
}

func watchLog(l hraft.LogStore) *watchedLog {
	return &watchedLog{LogStore: l, writing: stopwatch{began: time.Now()}}
}

func (w *watchedLog) StoreLogs(logs []*hraft.Log) error {
	w.writing.start()
	defer w.writing.stop()
	if stuck := w.stuck.Load(); stuck != nil {
		<-*stuck
	}
	return w.LogStore.StoreLogs(logs)
}
