// SPDX-License-Identifier: Apache-2.0

package client_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// move is the outcome of one attempt of the client.
type move int

const (
	lost          move = iota // executed; the response is lost
	never                     // not executed, no response
	late                      // no response; executed before the next attempt
	later                     // no response; executed after everything else
	refused                   // refused by a check of the queue, on a node that does not check the log for retries
	refusedNow                // refused by a check of the queue, on a node that checks the log for retries
	denied                    // refused before any check of the state
	notActive                 // the node has lost its role
	blocked                   // the node may not acknowledge; on a stream, the node reports its progress
	noActive                  // not executed, and no node is active until the next call of the application
	evicted                   // the node has evicted the producer, and reports it
	canceled                  // executed, but the caller's context ends before the response
	canceledFirst             // not executed, and the caller's context ends
	switched                  // not executed: the other site has become the primary, which the response reports
	promoted                  // as lost; the other site was promoted, and the old primary is unaware of this
	lossy                     // not executed, no response: promotion as in promoted, and the attempts in flight are lost
	moves
)

func (m move) String() string {
	return [...]string{
		"lost", "never", "late", "later", "refused", "refused-now", "denied", "not-active", "blocked", "no-active",
		"evicted", "canceled", "canceled-first", "switched", "promoted", "lossy",
	}[m]
}

// worldAddresses are the addresses of the active nodes of two sites.
func worldAddresses() []string { return []string{"node:1", "node:2"} }

// world is two nodes behind an interceptor, without a network: a standalone node at each of two sites. The replica has
// the same state as the primary. Each attempt has the outcome of the next move of the script; after the end of the
// script, every attempt succeeds. The state machine of a node maps sequences to results, as in store/queue.
type world struct {
	mu      sync.Mutex // guards the fields below
	script  []move
	fired   [moves]int
	active  bool
	sites   map[string]*pb.SiteInfo // by address
	changed chan struct{}           // closed and replaced when active or sites changes
	moved   time.Time               // last change of sites; the client is notified before the bubble's clock advances
	stale   int                     // attempts at a site that is not the primary, although the client was notified
	lossy   uint64                  // last epoch that began with a loss
	reused  int                     // acks after a loss: the sequence may belong to a different message
	currentCall

	producers map[string]map[uint64]*outcome
	evicted   map[string]bool // evicted producers
	// early means that the sequences are a producer's first: a node accepts an unknown producer as a new one.
	early   bool
	delayed []func()
	atEnd   []func()

	stored map[string]int // copies of each message, by queue and body
	acked  map[uint64]bool
	purged int
}

// currentCall cancels the context of the application's current call.
type currentCall struct{ cancelCall context.CancelFunc }

// outcome is the result of a sequence in the log.
type outcome struct{ refused bool }

func newWorld(early bool, script []move) *world {
	sites := make(map[string]*pb.SiteInfo)
	for i, address := range worldAddresses() {
		sites[address] = &pb.SiteInfo{
			Name: address, Role: pb.SiteRole(i + 1), Lineage: "l", Epoch: 1, RemoteAddresses: worldAddresses(),
		}
	}
	return &world{
		sites: sites, script: script, active: true, changed: make(chan struct{}),
		producers: make(map[string]map[uint64]*outcome), evicted: make(map[string]bool), early: early,
		stored: make(map[string]int), acked: make(map[uint64]bool),
	}
}

// options returns dial options that connect the client to the world instead of a network.
func (w *world) options() []grpc.DialOption {
	return []grpc.DialOption{grpc.WithChainUnaryInterceptor(w.unary), grpc.WithChainStreamInterceptor(w.stream)}
}

// call makes a node active again and returns the context for a call of the application.
func (w *world) call(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cancelCall = cancel
	w.setActive(true)
	return ctx, cancel
}

func (w *world) setActive(active bool) {
	if w.active != active {
		w.active = active
		w.announce()
	}
}

func (w *world) announce() {
	close(w.changed)
	w.changed = make(chan struct{})
}

// primary returns the address of the primary site. If both sites are primary, it returns the one with the higher
// epoch.
func (w *world) primary() string {
	best := ""
	for address, site := range w.sites {
		if site.GetRole() == pb.SiteRole_SITE_ROLE_PRIMARY && site.GetEpoch() >= w.sites[best].GetEpoch() {
			best = address
		}
	}
	return best
}

// promote makes the other site the primary in a new epoch. If aware is set, the old primary becomes the replica.
// Otherwise it keeps its role, and the next promotion makes it the primary again.
func (w *world) promote(aware bool) {
	old := w.primary()
	for address, site := range w.sites {
		next := proto.CloneOf(site)
		switch {
		case address != old:
			next.Role, next.Epoch = pb.SiteRole_SITE_ROLE_PRIMARY, w.sites[old].GetEpoch()+1
			next.LossyEpoch = w.lossy
		case aware:
			next.Role, next.Epoch = pb.SiteRole_SITE_ROLE_REPLICA, next.GetEpoch()+1
		}
		w.sites[address] = next
	}
	w.moved = time.Now()
	w.announce()
}

// end executes the attempts that are still in flight.
func (w *world) end() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.arrive()
	for _, execute := range w.atEnd {
		execute()
	}
	w.atEnd = nil
}

func (w *world) arrive() {
	for _, execute := range w.delayed {
		execute()
	}
	w.delayed = nil
}

// next removes the first move of the script and returns it; ok is false at the end of the script.
func (w *world) next() (m move, ok bool) {
	if len(w.script) == 0 {
		return 0, false
	}
	m, w.script = w.script[0], w.script[1:]
	w.fired[m]++
	return m, true
}

// errNoResponse means that the attempt receives no response.
var errNoResponse = fmt.Errorf("no response")

// attempt executes the next move at a node. apply changes the state, once for each sequence. The caller holds mu.
func (w *world) attempt(node string, p *pb.Producer, apply func()) (duplicate bool, err error) {
	w.arrive()
	switch {
	case node == w.primary():
	case w.moved.Equal(time.Now()):
		return false, replicaError()
	default:
		w.stale++
		return false, nil // a superseded primary accepts it, and the message is lost
	}
	m, ok := w.next()
	if !ok {
		return w.execute(p, true, false, apply)
	}
	execute := func() { _, _ = w.execute(p, true, false, apply) } // the response is lost
	switch m {
	case lost:
		execute()
	case late:
		w.delayed = append(w.delayed, execute)
	case later:
		w.atEnd = append(w.atEnd, execute)
	case refused, refusedNow:
		return w.execute(p, m == refusedNow, true, apply)
	case denied:
		return false, answer(codes.PermissionDenied, "DENIED", false)
	case notActive:
		st, err := status.New(codes.FailedPrecondition, "not active").WithDetails(&pb.NotActive{})
		if err != nil {
			return false, err
		}
		return false, st.Err()
	case blocked:
		return false, answer(codes.Unavailable, "BLOCKED", false)
	case noActive:
		w.setActive(false)
		w.cancelCall()
	case evicted:
		// An eviction requires very many other producers: by then, attempts in flight have arrived or never will.
		w.atEnd = nil
		delete(w.producers, p.GetId())
		w.evicted[p.GetId()] = true
		return w.execute(p, true, false, apply)
	case canceled, canceledFirst:
		if m == canceled {
			execute()
		}
		w.cancelCall()
		return false, errNoResponse
	case switched:
		w.promote(true)
		return false, replicaError(w.primary())
	case promoted:
		execute()
		w.promote(false)
	case lossy:
		w.delayed, w.atEnd = nil, nil
		w.lossy = w.sites[node].GetEpoch() + 1
		w.promote(false)
	case never, moves:
	}
	return false, status.Error(codes.Unavailable, "connection reset")
}

// execute executes a request as a node does: it returns a known result, refuses the request, or applies it.
func (w *world) execute(p *pb.Producer, knowsRetries, full bool, apply func()) (duplicate bool, err error) {
	retry := p.GetRetry() && knowsRetries
	known := w.producers[p.GetId()]
	if known == nil && (w.evicted[p.GetId()] && !w.early || len(w.evicted) > 0 && retry) {
		return false, answer(codes.OutOfRange, "PRODUCER_UNKNOWN", false)
	}
	if before := known[p.GetSequence()]; before != nil {
		if before.refused {
			return false, answer(codes.ResourceExhausted, "QUEUE_FULL", true)
		}
		return true, nil
	}
	if full && !retry {
		return false, answer(codes.ResourceExhausted, "QUEUE_FULL", false)
	}
	if known == nil {
		known = make(map[uint64]*outcome)
		w.producers[p.GetId()] = known
	}
	known[p.GetSequence()] = &outcome{refused: full}
	if full {
		return false, answer(codes.ResourceExhausted, "QUEUE_FULL", true)
	}
	apply()
	return false, nil
}

// answer returns a node's refusal.
func answer(code codes.Code, reason string, settled bool) error {
	info := &errdetails.ErrorInfo{Reason: reason, Domain: "lockstep.v1"}
	if settled {
		info.Metadata = map[string]string{"settled": "true"}
	}
	st, err := status.New(code, reason).WithDetails(info)
	if err != nil {
		return err
	}
	return st.Err()
}

func (w *world) publish(queue string, ms []*pb.Message) {
	for _, m := range ms {
		w.stored[queue+"/"+string(m.GetBody())]++
	}
}

// status returns the status of a node. A superseded primary remains active.
func (w *world) status(node string) *pb.GetStatusResponse {
	role := pb.Role_ROLE_STANDBY
	if w.active || w.sites[node].GetRole() == pb.SiteRole_SITE_ROLE_PRIMARY && node != w.primary() {
		role = pb.Role_ROLE_ACTIVE
	}
	term := uint64(1)
	if node == worldAddresses()[0] {
		term = 10 // terms of different pairs are not comparable
	}
	return &pb.GetStatusResponse{
		Role: role, Pair: &pb.PairStatus{PairId: node, Term: term}, Site: w.sites[node],
	}
}

// nodeOf returns the address of a connection.
func nodeOf(cc *grpc.ClientConn) string { return strings.TrimPrefix(cc.Target(), "passthrough:///") }

// unary implements unary calls.
func (w *world) unary(
	ctx context.Context, _ string, req, reply any, cc *grpc.ClientConn, _ grpc.UnaryInvoker, _ ...grpc.CallOption,
) error {
	node := nodeOf(cc)
	w.mu.Lock()
	defer w.mu.Unlock()
	switch r := req.(type) {
	case *pb.GetStatusRequest:
		proto.Merge(reply.(proto.Message), w.status(node))
		return nil
	case *pb.CommitRequest:
		r = proto.CloneOf(r)
		resp := &pb.CommitResponse{}
		for range r.GetOperations() {
			resp.Results = append(resp.Results, &pb.OperationResult{})
		}
		duplicate, err := w.attempt(node, r.GetProducer(), func() { w.commit(r) })
		resp.Duplicate = duplicate
		return w.reply(ctx, reply, resp, err)
	case *pb.PurgeQueueRequest:
		_, err := w.attempt(node, proto.CloneOf(r.GetProducer()), func() { w.purged++ })
		return w.reply(ctx, reply, &pb.PurgeQueueResponse{}, err)
	default:
		return status.Errorf(codes.Unimplemented, "%T", req)
	}
}

// reply returns the response, or waits for the end of the caller's context.
func (w *world) reply(ctx context.Context, reply any, resp proto.Message, err error) error {
	if err == errNoResponse { //nolint:errorlint // it is never wrapped
		w.mu.Unlock()
		<-ctx.Done()
		w.mu.Lock()
		return status.FromContextError(ctx.Err()).Err()
	}
	if err == nil {
		proto.Merge(reply.(proto.Message), resp)
	}
	return err
}

func (w *world) commit(r *pb.CommitRequest) {
	for _, op := range r.GetOperations() {
		w.publish(op.GetPublish().GetQueue(), op.GetPublish().GetMessages())
		w.ack(op.GetAck().GetRanges())
	}
}

func (w *world) ack(ranges []*pb.SequenceRange) {
	for _, r := range ranges {
		if w.lossy > 0 {
			w.reused++
		}
		for s := r.GetFirst(); s <= r.GetLast(); s++ {
			w.acked[s] = true
		}
	}
}

// stream implements streaming calls.
func (w *world) stream(
	ctx context.Context, _ *grpc.StreamDesc, cc *grpc.ClientConn, _ string, _ grpc.Streamer, _ ...grpc.CallOption,
) (grpc.ClientStream, error) {
	return &worldStream{
		world: w, node: nodeOf(cc), ctx: ctx, answers: make(chan proto.Message, 100), ended: make(chan error, 1),
	}, nil
}

// worldStream is a stream of any method.
type worldStream struct {
	world   *world
	node    string
	ctx     context.Context
	answers chan proto.Message
	ended   chan error // capacity 1
	over    bool       // guarded by world.mu
	through uint64     // sequence of the last request before the one that ended a publish stream; guarded by world.mu
}

func (s *worldStream) Header() (metadata.MD, error) { return nil, nil }
func (s *worldStream) Trailer() metadata.MD         { return nil }
func (s *worldStream) CloseSend() error             { return nil }
func (s *worldStream) Context() context.Context     { return s.ctx }

// SendMsg processes a request of the client.
func (s *worldStream) SendMsg(m any) error {
	s.world.mu.Lock()
	defer s.world.mu.Unlock()
	if s.over {
		return s.ctx.Err()
	}
	switch r := m.(type) {
	case *pb.WatchStatusRequest:
		go s.watch()
	case *pb.ConsumeRequest:
		s.consume(proto.CloneOf(r))
	case proto.Message: // a frame, which is converted to its request
		if publish, ok := r.ProtoReflect().Interface().(*pb.PublishStreamRequest); ok {
			s.publish(proto.CloneOf(publish))
		}
	}
	return nil
}

func (s *worldStream) end(err error) {
	s.over = true
	s.ended <- err
}

// RecvMsg returns a response of the world.
func (s *worldStream) RecvMsg(m any) error {
	select {
	case a := <-s.answers:
		proto.Merge(m.(proto.Message), a)
		return nil
	default:
	}
	select {
	case a := <-s.answers:
		proto.Merge(m.(proto.Message), a)
		return nil
	case err := <-s.ended:
		s.ended <- err
		return err
	case <-s.ctx.Done():
		return status.FromContextError(s.ctx.Err()).Err()
	}
}

func (s *worldStream) watch() {
	for {
		s.world.mu.Lock()
		st, changed := s.world.status(s.node), s.world.changed
		s.world.mu.Unlock()
		select {
		case s.answers <- &pb.WatchStatusResponse{Status: st}:
		case <-s.ctx.Done():
			return
		}
		select {
		case <-changed:
		case <-s.ctx.Done():
			return
		}
	}
}

func (s *worldStream) publish(r *pb.PublishStreamRequest) {
	for _, r := range slices.Concat([]*pb.PublishStreamRequest{r}, r.GetMore()) {
		if s.over {
			return
		}
		resp := &pb.PublishStreamResponse{Correlation: r.GetCorrelation(), AcceptsMore: true}
		duplicate, err := s.world.attempt(s.node, r.GetPublish().GetProducer(), func() {
			s.world.publish(r.GetPublish().GetQueue(), r.GetPublish().GetMessages())
		})
		if err == errNoResponse { //nolint:errorlint // it is never wrapped
			return
		}
		st := status.Convert(err)
		if len(st.Details()) > 0 && st.Message() == "BLOCKED" {
			if with, detailErr := st.WithDetails(&pb.Submitted{Through: s.through}); detailErr == nil {
				err = with.Err()
			}
		}
		s.through = r.GetCorrelation()
		switch st.Code() {
		case codes.OK:
			resp.Published = &pb.PublishResponse{Duplicate: duplicate}
		case codes.Unavailable, codes.FailedPrecondition, codes.PermissionDenied:
			s.end(err)
			return
		default:
			resp.Error = &pb.RequestError{Code: uint32(st.Code()), Message: st.Message()}
			for _, d := range st.Details() {
				if info, ok := d.(*errdetails.ErrorInfo); ok {
					resp.Error.Reason, resp.Error.Settled = info.GetReason(), info.GetMetadata()["settled"] == "true"
				}
			}
		}
		s.answers <- resp
	}
}

// consume handles a request that attaches or acknowledges. The queue contains one message, with sequence 1. An ack
// needs no producer, because it is idempotent.
func (s *worldStream) consume(r *pb.ConsumeRequest) {
	if r.GetAttach() != nil {
		resp := &pb.ConsumeResponse{Attached: true}
		if !s.world.acked[1] {
			resp.Messages = []*pb.StoredMessage{{Sequence: 1, Message: &pb.Message{Body: []byte("x")}}}
		}
		s.answers <- resp
	}
	if r.GetConfirm() == 0 {
		return
	}
	_, err := s.world.attempt(s.node, &pb.Producer{Id: fmt.Sprintf("%p", r), Sequence: 1, Retry: false},
		func() { s.world.ack(r.GetAck()) })
	switch {
	case err == errNoResponse: //nolint:errorlint // it is never wrapped
	case err != nil:
		s.end(err)
	default:
		s.answers <- &pb.ConsumeResponse{Confirmed: r.GetConfirm()}
	}
}
