// SPDX-License-Identifier: Apache-2.0

package client_test

import (
	"context"
	"fmt"
	"net"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/lockstep-mq/lockstep/client"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/test/simnet"
)

// fakePair is two gRPC servers over one store and an in-memory network, in a synctest bubble. At a given request it can
// cause events that are rare with a real pair: commit and fail before the response, freeze, refuse, respond from an
// older term. Real pairs are tested in test/ and in the examples.
type fakePair struct {
	t     *testing.T
	net   *simnet.Network
	here  *simnet.Process // process of the clients
	nodes [2]*fakeNode
	addrs []string
	other []*fakeNode // nodes of the other site; they use the same store

	mu        sync.Mutex // guards the fields below
	term      uint64
	messages  map[string][]*pb.StoredMessage
	acked     map[string]map[uint64]bool
	producers map[string]*fakeProducer
	changed   chan struct{} // closed and replaced at each change of messages or roles
	requests  []int         // number of messages of each committed publish request
	frames    int           // frames of publish streams
	simple    bool          // accepts one request per frame
	named     bool          // the status names the nodes of the pair
	// onPublish is called before the response to a committed publish; if it returns false, no response is sent.
	onPublish func(n *fakeNode, r *pb.PublishRequest) bool
	// refuse returns the error of a publish request, which is then not committed.
	refuse func(r *pb.PublishRequest) *pb.RequestError
	// endStream returns the status that ends a publish stream before a request is processed.
	endStream func(r *pb.PublishStreamRequest) error
	// delay is the time between the receipt of a publish frame and its execution.
	delay time.Duration
	// minInSync is the required number of in-sync nodes; one node is in sync.
	minInSync uint32
	// refuseCommit returns the error of a transaction, which is then not committed.
	refuseCommit func(r *pb.CommitRequest) error
	// refuseChange is the error of administrative changes by one node.
	refuseChange error
	// queueIDs are the IDs that consumers sent in attach requests and transactions.
	queueIDs []uint64
	// commits counts the requested transactions.
	commits int
	// rejected are the sequences that consumers rejected.
	rejected map[string][]uint64
	// noRoom makes rejected messages wait for space in the dead-letter queue.
	noRoom bool
	// leaves are the last requests of consumers that have left.
	leaves []*pb.Leave
	// endConsume returns the status that ends a consumer's stream before a request is processed.
	endConsume func(r *pb.ConsumeRequest) error
	// late are sequences after their deadline: acknowledgements of them are refused.
	late []*pb.SequenceRange
	// endLate ends the stream after such a refusal, without confirming the request. resent contains the
	// acknowledgements in the first request of each stream.
	endLate bool
	resent  []*pb.SequenceRange
	// responses are sent to consumers. extended contains the sequences that consumers extended, and lastRequest is the
	// last request of a consumer.
	responses   chan *pb.ConsumeResponse
	extended    []uint64
	lastRequest *pb.ConsumeRequest
	// beforeMessages is called before messages are sent to a consumer.
	beforeMessages func(n *fakeNode)
	// altered are the requests of AlterQueue.
	altered []*pb.AlterQueueRequest
	// chosen determines the result of MoveMessages and RemoveMessages.
	chosen func() error
	// replay implements ReplayDeadLetters.
	replay func(r *pb.ReplayDeadLettersRequest) (*pb.ReplayDeadLettersResponse, error)
	// browse implements Browse.
	browse func(r *pb.BrowseRequest, send func(*pb.BrowseResponse)) error
	// owner returns nil for a queue that the pair owns.
	owner func(queue string) *pb.NotOwner
	// described returns the error of a lookup; it may be nil. lookups counts the calls of GetQueue.
	described func(queue string) error
	lookups   int
	// schedules are the names of the schedules. fleet is the response to GetFleet; without it, the call is refused.
	schedules map[string]bool
	fleet     func() (*pb.GetFleetResponse, error)
	// removed means that the pair was removed from its fleet, and refuses clients.
	removed bool
	// plan is the plan that WatchPlan returns.
	plan *pb.Plan

	auth fakeAuth
}

type fakeProducer struct {
	last    uint64
	results map[uint64]*pb.PublishResponse
}

type fakeNode struct {
	pb.UnimplementedQueueServiceServer
	pb.UnimplementedAdminServiceServer
	pb.UnimplementedMaintenanceServiceServer
	pb.UnimplementedSiteServiceServer
	pb.UnimplementedScheduleServiceServer
	pb.UnimplementedFleetServiceServer
	pair   *fakePair
	addr   string
	other  string
	server *grpc.Server
	gate   *gate
	pairID string
	role   pb.Role      // guarded by pair.mu
	term   uint64       // guarded by pair.mu
	site   *pb.SiteInfo // nil without sites; guarded by pair.mu
}

// simulated runs a subtest in a separate synctest bubble.
func simulated(t *testing.T, name string, test func(t *testing.T)) {
	t.Helper()
	t.Run(name, func(t *testing.T) { synctest.Test(t, test) })
}

// pause waits in simulated time.
func pause(d time.Duration) {
	time.Sleep(d) //nolint:forbidigo // in a bubble
}

func newFakePair(t *testing.T) *fakePair { return newFakePairAt(t, simnet.New(simnet.Options{}), 0) }

// newFakePairAt creates the pair with the given number in a network.
func newFakePairAt(t *testing.T, network *simnet.Network, number int) *fakePair {
	p := &fakePair{
		t: t, net: network, here: network.NewProcess(fmt.Sprintf("127.0.%d.9", number)), term: 1,
		messages: make(map[string][]*pb.StoredMessage), acked: make(map[string]map[uint64]bool),
		rejected: make(map[string][]uint64), producers: make(map[string]*fakeProducer), changed: make(chan struct{}),
	}
	for i := range p.nodes {
		n := &fakeNode{pair: p, pairID: "p", role: pb.Role_ROLE_STANDBY, term: 1}
		p.nodes[i] = n
		n.start(fmt.Sprintf("127.0.%d.%d:7420", number, i+1))
		p.addrs = append(p.addrs, n.addr)
	}
	p.nodes[0].other, p.nodes[1].other = p.addrs[1], p.addrs[0]
	p.nodes[0].role = pb.Role_ROLE_ACTIVE
	t.Cleanup(func() {
		for _, n := range slices.Concat(p.nodes[:], p.other) {
			n.gate.open()
			n.server.Stop()
		}
	})
	return p
}

func (n *fakeNode) start(addr string) {
	host, _, err := net.SplitHostPort(addr)
	require.NoError(n.pair.t, err)
	ln, err := n.pair.net.NewProcess(host).Listen(n.pair.t.Context(), addr)
	require.NoError(n.pair.t, err)
	n.addr, n.gate, n.server = ln.Addr().String(), newGate(), grpc.NewServer(n.pair.auth.options()...)
	pb.RegisterQueueServiceServer(n.server, n)
	pb.RegisterAdminServiceServer(n.server, n)
	pb.RegisterMaintenanceServiceServer(n.server, n)
	pb.RegisterSiteServiceServer(n.server, n)
	pb.RegisterScheduleServiceServer(n.server, n)
	pb.RegisterFleetServiceServer(n.server, n)
	go func() { _ = n.server.Serve(gatedListener{ln, n.gate}) }()
}

// dialer dials over the network of the pair.
func (p *fakePair) dialer() grpc.DialOption { return grpc.WithContextDialer(p.here.Dial) }

// client opens a client that is closed with the test.
func (p *fakePair) client(o client.Options) *client.Client {
	if o.Addresses == nil {
		o.Addresses = p.addrs
	}
	o.DialOptions = append(o.DialOptions, p.dialer())
	c, err := client.OpenWith(p.t.Context(), o)
	require.NoError(p.t, err)
	p.t.Cleanup(func() { require.NoError(p.t, c.Close()) })
	return c
}

func (p *fakePair) announce() {
	close(p.changed)
	p.changed = make(chan struct{})
}

// takeOver makes node i active in a new term; the other node is not notified.
func (p *fakePair) takeOver(i int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.term++
	p.nodes[i].role, p.nodes[i].term = pb.Role_ROLE_ACTIVE, p.term
	p.announce()
}

func (p *fakePair) setRole(i int, r pb.Role) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.nodes[i].role = r
	p.announce()
}

func (p *fakePair) bodies(queue string) []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	var out []string
	for _, m := range p.messages[queue] {
		out = append(out, string(m.GetMessage().GetBody()))
	}
	return out
}

func (p *fakePair) ackedCount(queue string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.acked[queue])
}

// status returns the status of a node. The caller holds mu.
func (n *fakeNode) status() *pb.GetStatusResponse {
	st := &pb.GetStatusResponse{
		Role: n.role, Pair: &pb.PairStatus{PairId: n.pairID, Term: n.term, MinInSync: n.pair.minInSync},
		Reason: "injected", Site: n.site,
	}
	if n.pair.named {
		st.Node = &pb.NodeStatus{NodeId: n.addr}
		for _, m := range n.members() {
			st.Pair.Nodes = append(st.Pair.Nodes, &pb.NodeStatus{
				NodeId: m.addr, Address: m.addr,
				Active: m.role == pb.Role_ROLE_ACTIVE,
			})
		}
	}
	return st
}

func (n *fakeNode) GetStatus(context.Context, *pb.GetStatusRequest) (*pb.GetStatusResponse, error) {
	n.pair.mu.Lock()
	defer n.pair.mu.Unlock()
	return n.status(), nil
}

func (n *fakeNode) WatchStatus(_ *pb.WatchStatusRequest, s grpc.ServerStreamingServer[pb.WatchStatusResponse]) error {
	for {
		n.pair.mu.Lock()
		st, changed := n.status(), n.pair.changed
		n.pair.mu.Unlock()
		if err := s.Send(&pb.WatchStatusResponse{Status: st}); err != nil {
			return err
		}
		select {
		case <-changed:
		case <-s.Context().Done():
			return nil
		}
	}
}

// active returns an error unless the node is active. The caller holds mu.
func (n *fakeNode) active() error {
	refusal := &pb.NotActive{ActiveAddress: n.other}
	switch {
	case n.pair.removed:
		refusal = &pb.NotActive{Role: "REMOVED"}
	case n.role == pb.Role_ROLE_ACTIVE:
		return n.primary()
	}
	st, err := status.New(codes.FailedPrecondition, "this node is not active").WithDetails(refusal)
	if err != nil {
		return err
	}
	return st.Err()
}

// publish commits a request, or returns the result of an earlier attempt. The caller holds mu.
func (p *fakePair) publish(r *pb.PublishRequest) *pb.PublishResponse {
	id := fmt.Sprint(r.GetProducer().GetId(), "/", r.GetProducer().GetEpoch())
	pr := p.producers[id]
	if pr == nil {
		pr = &fakeProducer{results: make(map[uint64]*pb.PublishResponse)}
		p.producers[id] = pr
	}
	seq := r.GetProducer().GetSequence()
	if old := pr.results[seq]; old != nil {
		return &pb.PublishResponse{FirstSequence: old.GetFirstSequence(), Lsn: old.GetLsn(), Duplicate: true}
	}
	if r.GetProducer().GetRetry() { // other requests may precede it after a refusal because of the owner
		require.Greater(p.t, seq+256, pr.last, "the nodes retain 256 results of a producer")
	} else {
		require.Greater(p.t, seq, pr.last, "sequences of a producer increase")
	}
	pr.last = max(pr.last, seq)
	resp := &pb.PublishResponse{
		FirstSequence: uint64(len(p.messages[r.GetQueue()]) + 1),
		Lsn:           uint64(len(p.requests) + 1),
	}
	for i, m := range r.GetMessages() {
		p.messages[r.GetQueue()] = append(p.messages[r.GetQueue()],
			&pb.StoredMessage{Sequence: resp.GetFirstSequence() + uint64(i), Message: m})
	}
	pr.results[seq] = resp
	p.requests = append(p.requests, len(r.GetMessages()))
	p.announce()
	return resp
}

// handOver transfers the active role after each group of every requests. The old active commits the last request of
// a group and sends no response.
func (p *fakePair) handOver(every int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	active, last := 0, 0
	p.onPublish = func(n *fakeNode, _ *pb.PublishRequest) bool {
		if len(p.requests) < last+every || n != p.nodes[active] {
			return true
		}
		last = len(p.requests)
		p.nodes[active].role = pb.Role_ROLE_STANDBY
		active = 1 - active
		p.term++
		p.nodes[active].role, p.nodes[active].term = pb.Role_ROLE_ACTIVE, p.term
		p.announce()
		return false
	}
}

func (n *fakeNode) PublishStream(s pb.QueueService_PublishStreamServer) error {
	n.pair.mu.Lock()
	err := n.primary()
	n.pair.mu.Unlock()
	if err != nil {
		st, err := status.Convert(err).WithDetails(&pb.Submitted{})
		require.NoError(n.pair.t, err)
		return st.Err()
	}
	first := true
	refused := make(map[string]*pb.RequestError)
	for {
		r, err := s.Recv()
		if err != nil {
			return err
		}
		together := append([]*pb.PublishStreamRequest{r}, r.GetMore()...)
		require.False(n.pair.t, first && len(together) > 1, "unexpected batch")
		n.pair.mu.Lock()
		n.pair.frames++
		delay := n.pair.delay
		n.pair.mu.Unlock()
		pause(delay)
		var answers []*pb.PublishStreamResponse
		for _, r := range together {
			resp, err := n.publishOne(r, refused)
			if err == nil {
				answers = append(answers, resp)
				if codes.Code(resp.GetError().GetCode()) == codes.Unavailable && !concernsOwner(resp.GetError()) {
					err = status.Error(codes.Unavailable, "stream ended: later responses "+
						"must not overtake it")
				}
			}
			if err == nil {
				if len(answers) < 3 && r != together[len(together)-1] {
					continue // three responses per frame
				}
			}
			if len(answers) > 0 {
				all := answers[0]
				all.AcceptsMore, all.More = first && !n.pair.simple, answers[1:]
				if err := s.Send(all); err != nil {
					return err
				}
			}
			if err != nil {
				return err
			}
			first, answers = false, nil
		}
	}
}

func concernsOwner(e *pb.RequestError) bool {
	return e.GetReason() == "NOT_OWNER" || e.GetReason() == "DIRECTORY_UNAVAILABLE"
}

// publishOne handles one request of a stream. refused are the errors of queues of other pairs in earlier responses. The
// error ends the stream.
func (n *fakeNode) publishOne(
	r *pb.PublishStreamRequest, refused map[string]*pb.RequestError,
) (*pb.PublishStreamResponse, error) {
	n.pair.mu.Lock()
	defer n.pair.mu.Unlock()
	if err := n.active(); err != nil {
		return nil, err
	}
	if n.pair.endStream != nil {
		if err := n.pair.endStream(r); err != nil {
			return nil, err
		}
	}
	resp := &pb.PublishStreamResponse{Correlation: r.GetCorrelation()}
	queue := r.GetPublish().GetQueue()
	if r.GetResumes() {
		delete(refused, queue)
	}
	resp.Error = n.pair.refusedPublish(r.GetPublish())
	if before := refused[queue]; before != nil && resp.GetError() == nil && !n.pair.executed(r.GetPublish()) {
		resp.Error = proto.CloneOf(before)
		resp.Error.Settled = r.GetPublish().GetProducer().GetRetry()
	}
	if resp.GetError() != nil {
		refused[queue] = resp.GetError()
		return resp, nil
	}
	if n.pair.refuse != nil {
		if resp.Error = n.pair.refuse(r.GetPublish()); resp.GetError() != nil {
			return resp, nil
		}
	}
	resp.Published = n.pair.publish(r.GetPublish())
	if n.pair.onPublish != nil && !n.pair.onPublish(n, r.GetPublish()) {
		return nil, status.Error(codes.Unavailable, "node failed")
	}
	return resp, nil
}

func (n *fakeNode) Commit(_ context.Context, r *pb.CommitRequest) (*pb.CommitResponse, error) {
	n.pair.mu.Lock()
	defer n.pair.mu.Unlock()
	if err := n.active(); err != nil {
		return nil, err
	}
	if err := n.pair.ownsAll(r.GetOperations()); err != nil {
		return nil, err
	}
	n.pair.commits++
	if n.pair.refuseCommit != nil {
		if err := n.pair.refuseCommit(r); err != nil {
			return nil, err
		}
	}
	out := &pb.CommitResponse{Lsn: 1}
	for i, op := range r.GetOperations() {
		res := &pb.OperationResult{}
		if p := op.GetPublish(); p != nil {
			pr := &pb.Producer{Id: fmt.Sprint(r.GetProducer().GetId(), "#", i), Sequence: r.GetProducer().GetSequence()}
			done := n.pair.publish(&pb.PublishRequest{Queue: p.GetQueue(), Messages: p.GetMessages(), Producer: pr})
			res.FirstSequence, out.Duplicate = done.GetFirstSequence(), done.GetDuplicate()
			if n.pair.onPublish != nil && !n.pair.onPublish(n, nil) {
				return nil, status.Error(codes.Unavailable, "node failed")
			}
		}
		n.pair.ack(op.GetAck().GetQueue(), op.GetAck().GetRanges())
		if op.GetAck() != nil {
			n.pair.queueIDs = append(n.pair.queueIDs, op.GetAck().GetQueueId())
		}
		out.Results = append(out.Results, res)
	}
	return out, nil
}

// Prepare stores the messages like Commit: these tests do not cover decisions.
func (n *fakeNode) Prepare(ctx context.Context, r *pb.PrepareRequest) (*pb.PrepareResponse, error) {
	c, err := n.Commit(ctx, &pb.CommitRequest{Operations: r.GetOperations(), Producer: r.GetProducer()})
	return &pb.PrepareResponse{Lsn: c.GetLsn(), Duplicate: c.GetDuplicate()}, err
}

// attached records the queue ID in an attach request, and returns the ID of the queue.
func (p *fakePair) attached(a *pb.Attach) uint64 {
	if a == nil {
		return 0
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.queueIDs = append(p.queueIDs, a.GetQueueId())
	return 7
}

// ack acknowledges sequences. The caller holds mu.
func (p *fakePair) ack(queue string, ranges []*pb.SequenceRange) {
	if p.acked[queue] == nil {
		p.acked[queue] = make(map[uint64]bool)
	}
	for _, r := range ranges {
		for s := r.GetFirst(); s <= r.GetLast(); s++ {
			p.acked[queue][s] = true
		}
	}
}

// settle applies the acks and rejects of a consumer's request. The caller holds mu.
func (p *fakePair) settle(queue string, r *pb.ConsumeRequest) error {
	if queue == "missing" {
		return status.Error(codes.NotFound, "queue not found")
	}
	if p.endConsume != nil {
		if err := p.endConsume(r); err != nil {
			return err
		}
	}
	p.ack(queue, r.GetAck())
	for _, x := range r.GetExtend().GetSequences() {
		for s := x.GetFirst(); s <= x.GetLast(); s++ {
			p.extended = append(p.extended, s)
		}
	}
	p.lastRequest = r
	if r.GetLeave() != nil {
		p.leaves = append(p.leaves, r.GetLeave())
	}
	p.ack(queue, r.GetReject()) // a rejected message is not redelivered
	for _, x := range r.GetReject() {
		for s := x.GetFirst(); s <= x.GetLast(); s++ {
			p.rejected[queue] = append(p.rejected[queue], s)
		}
	}
	return nil
}

// waits reports whether rejects of a request wait for space.
func (p *fakePair) waits(r *pb.ConsumeRequest) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.noRoom && len(r.GetReject()) > 0
}

// refused returns the answers of a request that are refused, and whether the stream ends.
func (p *fakePair) refused(r *pb.ConsumeRequest) (refused *pb.RefusedAnswers, end bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if r.GetAttach() != nil {
		p.resent = append(p.resent, r.GetAck()...)
	}
	if len(p.late) == 0 || len(r.GetAck()) == 0 {
		return nil, false
	}
	return &pb.RefusedAnswers{Sequences: p.late, Reason: pb.ErrorReason_ERROR_REASON_ACK_DEADLINE_EXPIRED}, p.endLate
}

func (n *fakeNode) Consume(s pb.QueueService_ConsumeServer) error {
	in := make(chan *pb.ConsumeRequest)
	go func() {
		defer close(in)
		for {
			r, err := s.Recv()
			if err != nil {
				return
			}
			select {
			case in <- r:
			case <-s.Context().Done():
				return
			}
		}
	}()
	queue, credit, next, first := "", 0, uint64(1), true
	var again []uint64
	for {
		n.pair.mu.Lock()
		changed, err := n.pair.changed, n.active()
		if err == nil && queue != "" {
			err = n.pair.owns(queue)
		}
		resp := &pb.ConsumeResponse{}
		if queue != "" {
			for credit > 0 && len(again) > 0 {
				resp.Messages = append(resp.Messages, n.pair.messages[queue][again[0]-1])
				again, credit = again[1:], credit-1
			}
			for ; credit > 0 && int(next) <= len(n.pair.messages[queue]); next++ {
				if !n.pair.acked[queue][next] {
					resp.Messages = append(resp.Messages, n.pair.messages[queue][next-1])
					credit--
				}
			}
		}
		n.pair.mu.Unlock()
		if err != nil {
			return err
		}
		if len(resp.GetMessages()) > 0 {
			if n.pair.beforeMessages != nil {
				n.pair.beforeMessages(n)
			}
			if err := s.Send(resp); err != nil {
				return err
			}
		}
		select {
		case r, ok := <-in:
			if !ok {
				return nil
			}
			n.pair.mu.Lock()
			if first {
				queue, first = r.GetAttach().GetQueue(), false
			}
			err := n.pair.owns(queue)
			if err == nil {
				err = n.pair.settle(queue, r)
			}
			n.pair.mu.Unlock()
			if err != nil {
				return err
			}
			for _, x := range r.GetNack() {
				for q := x.GetFirst(); q <= x.GetLast(); q++ {
					again = append(again, q)
				}
			}
			credit += int(r.GetCredit())
			if n.pair.waits(r) {
				if err := s.Send(&pb.ConsumeResponse{Waiting: r.GetReject()}); err != nil {
					return err
				}
			}
			refused, end := n.pair.refused(r)
			answer := &pb.ConsumeResponse{
				Attached: r.GetAttach() != nil, QueueId: n.pair.attached(r.GetAttach()),
				AckTimeout: r.GetAttach().GetAckTimeout(), Refused: refused,
			}
			if !end {
				answer.Confirmed = r.GetConfirm()
			}
			if err := s.Send(answer); err != nil {
				return err
			}
			if end {
				return status.Error(codes.Unavailable, "the connection breaks")
			}
		case resp := <-n.pair.responses:
			if err := s.Send(resp); err != nil {
				return err
			}
		case <-changed:
		case <-s.Context().Done():
			return nil
		}
	}
}
