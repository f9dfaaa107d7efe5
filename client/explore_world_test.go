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
	rehomed                   // not executed: the queues have moved to the other pair, which the response reports
	rehomedLost               // executed before the queues move to the other pair; the response is lost
	rehomedNever              // not executed, no response; the queues move to the other pair
	moves
)

func (m move) String() string {
	return [...]string{
		"lost", "never", "late", "later", "refused", "refused-now", "denied", "not-active", "blocked", "no-active",
		"evicted", "canceled", "canceled-first", "switched", "promoted", "lossy", "rehomed", "rehomed-lost",
		"rehomed-never",
	}[m]
}

// worldAddresses are the addresses of the active nodes of two sites.
func worldAddresses() []string { return []string{"node:1", "node:2"} }

// Names of the pairs of the fleet. The home pair has a node at each of two sites, and the other pair one node, to which
// the client is directed. All queues belong to one of the pairs.
const (
	homePair     = "home"
	otherPair    = "other"
	otherAddress = "node:3"
)

func pairOf(node string) string {
	if node == otherAddress {
		return otherPair
	}
	return homePair
}

// world is three nodes behind an interceptor, without a network: a standalone node at each of two sites, and one of
// another pair. The replica has the same state as the primary. Each attempt has the outcome of the next move of the
// script; after the end of the script, every attempt succeeds. The state machine of a node maps sequences to results,
// as in store/queue.
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

	owner     string // pair of the queues
	epoch     uint64 // ownership epoch
	consumers []*worldStream

	producers map[producerOf]map[uint64]*outcome
	evicted   map[producerOf]bool // evicted producers
	// early means that the sequences are a producer's first: a node accepts an unknown producer as a new one.
	early   bool
	delayed []func()
	atEnd   []func()

	stored map[string]int // copies of each message, by queue and body
	order  []string       // all messages in their order, as in stored
	acked  map[uint64]bool
	purged int
}

// currentCall cancels the context of the application's current call.
type currentCall struct{ cancelCall context.CancelFunc }

// producerOf is a producer of a pair: a move of queues does not move the state of their producers.
type producerOf struct{ pair, id string }

// outcome is the result of a sequence in the log.
type outcome struct {
	refused bool
	moved   bool // refused because the queue belonged to the other pair
}

func newWorld(early bool, script []move) *world {
	sites := make(map[string]*pb.SiteInfo)
	for i, address := range worldAddresses() {
		sites[address] = &pb.SiteInfo{
			Name: address, Role: pb.SiteRole(i + 1), Lineage: "l", Epoch: 1, RemoteAddresses: worldAddresses(),
		}
	}
	return &world{
		sites: sites, script: script, active: true, changed: make(chan struct{}),
		producers: make(map[producerOf]map[uint64]*outcome), evicted: make(map[producerOf]bool), early: early,
		owner: homePair, epoch: 1,
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

// rehome moves the queues to the other pair. Consumers of the former owner are notified.
func (w *world) rehome() {
	w.epoch++
	if w.owner == homePair {
		w.owner = otherPair
	} else {
		w.owner = homePair
	}
	for _, s := range w.consumers {
		if !s.over && pairOf(s.node) != w.owner {
			s.end(notOwner(w.ownerOf("in"), false))
		}
	}
	w.consumers = nil
}

// ownerOf returns the owner of a queue.
func (w *world) ownerOf(queue string) *pb.NotOwner {
	addresses := worldAddresses()
	if w.owner == otherPair {
		addresses = []string{otherAddress}
	}
	return &pb.NotOwner{Queue: queue, Pair: w.owner, Addresses: addresses, Epoch: w.epoch}
}

// refusing returns the refusal of a request because of the owner of its queue.
type refusing func(settled bool) error

// undirected returns the refusal of a request that may be repeated under another sequence.
func undirected(settled bool) error {
	return answer(codes.Unavailable, "DIRECTORY_UNAVAILABLE", settled)
}

// notOwner returns the refusal of a pair that does not have a queue.
func notOwner(owner *pb.NotOwner, settled bool) error {
	info := &errdetails.ErrorInfo{Reason: "NOT_OWNER", Domain: "lockstep.v1"}
	if settled {
		info.Metadata = map[string]string{"settled": "true"}
	}
	st, err := status.New(codes.FailedPrecondition, "not owner").WithDetails(info, owner)
	if err != nil {
		return err
	}
	return st.Err()
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

// attempt executes the next move at a node, for a request that names a queue. before is the refusal of an earlier
// request for the queue on the same stream, or nil. apply changes the state, once for each sequence. The caller holds
// mu.
func (w *world) attempt(
	node, queue string, p *pb.Producer, before refusing, apply func(),
) (duplicate bool, err error) {
	w.arrive()
	switch {
	case node == w.primary(), node == otherAddress:
	case w.moved.Equal(time.Now()):
		return false, replicaError()
	default:
		w.stale++
		return false, nil // a superseded primary accepts it, and the message is lost
	}
	r := &attempted{pairOf(node), queue, p, before, apply}
	m, ok := w.next()
	if !ok {
		return w.execute(r, true, false)
	}
	execute := func() { _, _ = w.execute(r, true, false) } // the response is lost
	if node == otherAddress {
		m = atOther(m)
	}
	switch m {
	case lost:
		execute()
	case late:
		w.delayed = append(w.delayed, execute)
	case later:
		w.atEnd = append(w.atEnd, execute)
	case refused, refusedNow:
		return w.execute(r, m == refusedNow, true)
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
		delete(w.producers, r.producer())
		w.evicted[r.producer()] = true
		return w.execute(r, true, false)
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
	case rehomed:
		if r.pair == w.owner {
			w.rehome()
		}
		return w.execute(r, true, false)
	case rehomedLost:
		execute()
		w.rehome()
	case rehomedNever:
		w.rehome()
	case never, moves:
	}
	return false, status.Error(codes.Unavailable, "connection reset")
}

// atOther replaces the moves that concern the sites of the home pair by similar ones.
func atOther(m move) move {
	switch m {
	case switched:
		return notActive
	case promoted:
		return lost
	case lossy:
		return never
	}
	return m
}

// attempted is a request at a pair.
type attempted struct {
	pair, queue string
	p           *pb.Producer
	before      refusing // see attempt
	apply       func()
}

func (r *attempted) producer() producerOf { return producerOf{r.pair, r.p.GetId()} }

// refusal returns the refusal of a request.
func (w *world) refusal(r *attempted, o *outcome, settled bool) error {
	if o.moved && r.before != nil {
		return r.before(settled)
	}
	if o.moved && r.pair != w.owner {
		return notOwner(w.ownerOf(r.queue), settled)
	}
	if o.moved { // the queue has been moved back
		return undirected(settled)
	}
	return answer(codes.ResourceExhausted, "QUEUE_FULL", settled)
}

// execute executes a request as a node does: it returns a known result, refuses the request, or applies it.
func (w *world) execute(r *attempted, knowsRetries, full bool) (duplicate bool, err error) {
	moved := r.pair != w.owner || r.before != nil
	knowsRetries = knowsRetries || moved
	retry := r.p.GetRetry() && knowsRetries
	known := w.producers[r.producer()]
	if known == nil && (w.evicted[r.producer()] && !w.early || len(w.evicted) > 0 && retry) {
		return false, answer(codes.OutOfRange, "PRODUCER_UNKNOWN", false)
	}
	if before := known[r.p.GetSequence()]; before != nil {
		if before.refused {
			return false, w.refusal(r, before, true)
		}
		return true, nil
	}
	result := &outcome{refused: full || moved, moved: moved}
	if result.refused && !retry {
		return false, w.refusal(r, result, false)
	}
	if known == nil {
		known = make(map[uint64]*outcome)
		w.producers[r.producer()] = known
	}
	known[r.p.GetSequence()] = result
	if result.refused {
		return false, w.refusal(r, result, true)
	}
	r.apply()
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
		w.order = append(w.order, queue+"/"+string(m.GetBody()))
	}
}

// status returns the status of a node. A superseded primary remains active.
func (w *world) status(node string) *pb.GetStatusResponse {
	role := pb.Role_ROLE_STANDBY
	if node == otherAddress {
		if w.active {
			role = pb.Role_ROLE_ACTIVE
		}
		return &pb.GetStatusResponse{Role: role, Pair: &pb.PairStatus{PairId: node, Term: 1}}
	}
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
		duplicate, err := w.attempt(node, "q", r.GetProducer(), nil, func() { w.commit(r) })
		resp.Duplicate = duplicate
		return w.reply(ctx, reply, resp, err)
	case *pb.PurgeQueueRequest:
		_, err := w.attempt(node, "q", proto.CloneOf(r.GetProducer()), nil, func() { w.purged++ })
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
		refused: map[string]refusing{},
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
	// refused contains the refusals of a publish stream, by queue. Guarded by world.mu.
	refused map[string]refusing
	// through is the sequence of the last request before the one that ended a publish stream. Guarded by world.mu.
	through uint64
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
		queue := r.GetPublish().GetQueue()
		if r.GetResumes() {
			delete(s.refused, queue)
		}
		duplicate, err := s.world.attempt(s.node, queue, r.GetPublish().GetProducer(), s.refused[queue], func() {
			s.world.publish(queue, r.GetPublish().GetMessages())
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
		resp.Error = requestError(st)
		switch code := st.Code(); {
		case code == codes.OK:
			resp.Published = &pb.PublishResponse{Duplicate: duplicate}
		case resp.GetError().GetNotOwner() != nil:
			owner := resp.GetError().GetNotOwner()
			s.refused[queue] = func(settled bool) error { return notOwner(owner, settled) }
		case resp.GetError().GetReason() == "DIRECTORY_UNAVAILABLE":
			s.refused[queue] = undirected
		case slices.Contains([]codes.Code{codes.Unavailable, codes.FailedPrecondition, codes.PermissionDenied}, code):
			s.end(err)
			return
		}
		s.answers <- resp
	}
}

// requestError converts a status to the error in a response of a stream; nil for no error.
func requestError(st *status.Status) *pb.RequestError {
	if st.Code() == codes.OK {
		return nil
	}
	e := &pb.RequestError{Code: uint32(st.Code()), Message: st.Message()}
	for _, d := range st.Details() {
		switch d := d.(type) {
		case *errdetails.ErrorInfo:
			e.Reason, e.Settled = d.GetReason(), d.GetMetadata()["settled"] == "true"
		case *pb.NotOwner:
			e.NotOwner = d
		}
	}
	return e
}

// consume handles a request that attaches or acknowledges. The queue contains one message, with sequence 1. An ack
// needs no producer, because it is idempotent.
func (s *worldStream) consume(r *pb.ConsumeRequest) {
	if r.GetAttach() != nil {
		if pairOf(s.node) != s.world.owner {
			s.end(notOwner(s.world.ownerOf(r.GetAttach().GetQueue()), false))
			return
		}
		s.world.consumers = append(s.world.consumers, s)
		resp := &pb.ConsumeResponse{Attached: true}
		if !s.world.acked[1] {
			resp.Messages = []*pb.StoredMessage{{Sequence: 1, Message: &pb.Message{Body: []byte("x")}}}
		}
		s.answers <- resp
	}
	if r.GetConfirm() == 0 {
		return
	}
	_, err := s.world.attempt(s.node, "in", &pb.Producer{Id: fmt.Sprintf("%p", r), Sequence: 1, Retry: false},
		nil, func() { s.world.ack(r.GetAck()) })
	switch {
	case err == errNoResponse, s.over: //nolint:errorlint // it is never wrapped
	case err != nil:
		s.end(err)
	default:
		s.answers <- &pb.ConsumeResponse{Confirmed: r.GetConfirm()}
	}
}
