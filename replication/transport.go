// SPDX-License-Identifier: Apache-2.0

package replication

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/google/uuid"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	"github.com/lockstep-mq/lockstep/proto/codec"
	lockstepv1 "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/proto/reason"
	"github.com/lockstep-mq/lockstep/store"
	"github.com/lockstep-mq/lockstep/store/lsn"
)

// Only this file and transport_*.go use gRPC and protobuf.

const (
	// maxMessageBytes must exceed Tuning.BatchBytes, and a snapshot chunk rounded up to pages.
	maxMessageBytes = 16 << 20
	// windowBytes is the flow-control window of one stream.
	windowBytes = 8 << 20
	// writeBufferBytes is the size of the write buffer.
	writeBufferBytes = 256 << 10
	// keepaliveTime applies to connections without messages; heartbeats are far more frequent.
	keepaliveTime = 20 * time.Second
)

// NewDialer returns a Dialer over gRPC. The options are appended to the defaults; without transport credentials the
// connection is not encrypted.
func NewDialer(options ...grpc.DialOption) Dialer {
	return NewDialerOver(func(ctx context.Context, address string) (net.Conn, error) {
		var nd net.Dialer
		return nd.DialContext(ctx, "tcp", address)
	}, options...)
}

// NewDialerOver is like NewDialer, but connects with dial. If the error of dial wraps syscall.ECONNREFUSED, Dial
// returns ErrRefused.
func NewDialerOver(
	dial func(ctx context.Context, address string) (net.Conn, error), options ...grpc.DialOption,
) Dialer {
	return grpcDialer{dial: dial, options: options}
}

type grpcDialer struct {
	dial    func(ctx context.Context, address string) (net.Conn, error)
	options []grpc.DialOption
}

// Dial implements Dialer. It opens the TCP connection directly.
func (d grpcDialer) Dial(ctx context.Context, address string) (Conn, error) {
	tcp, err := d.dial(ctx, address)
	if errors.Is(err, syscall.ECONNREFUSED) {
		return nil, fmt.Errorf("%w: %w", ErrRefused, err)
	}
	if err != nil {
		return nil, fmt.Errorf("dial: %w", err)
	}
	counted := &countedConn{Conn: tcp}
	var used atomic.Bool
	options := slices.Concat(codec.BulkDialOptions(maxMessageBytes), []grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) {
			if used.Swap(true) {
				return nil, errors.New("connection closed")
			}
			return counted, nil
		}),
		grpc.WithDefaultCallOptions(grpc.WaitForReady(false), grpc.MaxCallRecvMsgSize(maxMessageBytes)),
		grpc.WithInitialWindowSize(windowBytes), grpc.WithInitialConnWindowSize(2 * windowBytes),
		grpc.WithWriteBufferSize(writeBufferBytes),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: keepaliveTime, Timeout: keepaliveTime}),
		grpc.WithDisableRetry(), grpc.WithIdleTimeout(0),
	}, d.options)
	cc, err := grpc.NewClient("passthrough:///"+address, options...)
	if err != nil {
		_ = tcp.Close()
		return nil, fmt.Errorf("dial: %w", err)
	}
	return &grpcConn{cc: cc, tcp: counted, client: lockstepv1.NewReplicationServiceClient(cc)}, nil
}

type countedConn struct {
	net.Conn
	received atomic.Uint64
}

func (c *countedConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.received.Add(uint64(n))
	return n, err //nolint:wrapcheck // gRPC checks its type
}

type grpcConn struct {
	cc     *grpc.ClientConn
	tcp    *countedConn
	client lockstepv1.ReplicationServiceClient
}

func (c *grpcConn) Received() uint64 { return c.tcp.received.Load() }

func (c *grpcConn) Close() error {
	err := c.cc.Close()
	_ = c.tcp.Close() // gRPC uses the connection only from the first call on
	if err != nil {
		return fmt.Errorf("close: %w", err)
	}
	return nil
}

func (c *grpcConn) Replicate(ctx context.Context) (ActiveStream, error) {
	s, err := c.client.Replicate(ctx)
	if err != nil {
		return nil, fromStatus(err)
	}
	return activeStream{s}, nil
}

func (c *grpcConn) FetchSnapshot(ctx context.Context, req SnapshotRequest) (SnapshotStream, error) {
	s, err := c.client.FetchSnapshot(ctx, &lockstepv1.FetchSnapshotRequest{
		PairId: req.Pair.String(), NodeId: req.Node.String(), Config: req.Config,
		ResumeId: req.ResumeID, ResumeOffset: req.ResumeOffset, Committed: toPosition(req.Committed),
	})
	if err != nil {
		return nil, fromStatus(err)
	}
	return snapshotStream{s}, nil
}

type activeStream struct {
	s grpc.BidiStreamingClient[lockstepv1.ReplicateRequest, lockstepv1.ReplicateResponse]
}

func (a activeStream) Send(m *StandbyMessage) error {
	req := &lockstepv1.ReplicateRequest{
		Config: m.Config, Term: m.Term, Durable: toPosition(m.Durable), AppliedLsn: m.AppliedLSN,
		Hello: toHello(m.Hello),
	}
	if err := a.s.Send(req); errors.Is(err, io.EOF) {
		return fmt.Errorf("%w: %w", errStreamEnded, err) // Recv returns the reason
	} else if err != nil {
		return fromStatus(err)
	}
	return nil
}

var errStreamEnded = errors.New("stream closed by the remote end")

func (a activeStream) Recv() (*ActiveMessage, error) {
	r, err := a.s.Recv()
	if err != nil {
		return nil, fromStatus(err)
	}
	m := &ActiveMessage{
		Config: r.GetConfig(), Term: r.GetTerm(), Previous: fromPosition(r.GetPrevious()), Records: r.GetRecords(),
		Last: fromPosition(r.GetLast()), CommitLSN: r.GetCommitLsn(), AckRequired: r.GetAckRequired(),
		CommitTime: time.Duration(r.GetCommitTimeUs()) * time.Microsecond,
	}
	if t := r.GetTrace(); t != nil {
		m.Trace = &TraceContext{Parent: t.GetTraceparent(), State: t.GetTracestate()}
	}
	if w := r.GetWelcome(); w != nil {
		m.HelloResponse = &HelloResponse{
			ResumeAfter: fromPosition(w.GetResumeAfter()), SnapshotRequired: w.GetSnapshotRequired(),
			Reason: w.GetReason(), Protocol: w.GetProtocol(), OldestProtocol: w.GetOldestProtocol(),
			Features:       w.GetFeatures(),
			HoldsCommitted: w.GetHoldsCommitted(),
		}
	}
	return m, nil
}

type snapshotStream struct {
	s grpc.ServerStreamingClient[lockstepv1.FetchSnapshotResponse]
}

func (s snapshotStream) Recv() (*SnapshotChunk, error) {
	r, err := s.s.Recv()
	if errors.Is(err, io.EOF) {
		return nil, io.EOF
	}
	if err != nil {
		return nil, fromStatus(err)
	}
	c := &SnapshotChunk{Offset: r.GetOffset(), Data: r.GetData(), Checksum: r.GetChecksum(), Finished: r.GetFinished()}
	if h := r.GetHeader(); h != nil {
		c.Header = &SnapshotHeader{
			ID: h.GetId(), Position: fromPosition(h.GetPosition()), FileBytes: h.GetFileBytes(),
			DataBytes: h.GetDataBytes(),
			PageSize:  h.GetPageSize(), Config: h.GetConfig(), Term: h.GetTerm(), HoldsCommitted: h.GetHoldsCommitted(),
		}
	}
	return c, nil
}

// server passes each call to the node's current role.
type server struct {
	lockstepv1.UnimplementedReplicationServiceServer
	active    func() (Service, error)
	store     *store.Store
	responder Responder
}

// NewServer returns the gRPC service of a node. active is called for each Replicate and FetchSnapshot call, and returns
// the node's Primary or an error, usually ErrNotActive. s serves repair requests from the other node in any role. r
// responds to handshakes.
func NewServer(active func() (Service, error), s *store.Store, r Responder) lockstepv1.ReplicationServiceServer {
	return &server{active: active, store: s, responder: r}
}

func (s *server) Replicate(
	stream grpc.BidiStreamingServer[lockstepv1.ReplicateRequest, lockstepv1.ReplicateResponse],
) error {
	service, err := s.active()
	if err != nil {
		return toStatus(err)
	}
	return toStatus(service.Replicate(stream.Context(), standbyStream{stream}))
}

func (s *server) FetchSnapshot(
	req *lockstepv1.FetchSnapshotRequest, stream grpc.ServerStreamingServer[lockstepv1.FetchSnapshotResponse],
) error {
	service, err := s.active()
	if err != nil {
		return toStatus(err)
	}
	var pair, node uuid.UUID
	if err := errors.Join(parseID(req.GetPairId(), &pair), parseID(req.GetNodeId(), &node)); err != nil {
		return toStatus(err)
	}
	return toStatus(service.FetchSnapshot(stream.Context(), SnapshotRequest{
		Pair: pair, Node: node, Config: req.GetConfig(), ResumeID: req.GetResumeId(),
		ResumeOffset: req.GetResumeOffset(),
		Committed:    fromPosition(req.GetCommitted()),
	}, func(c *SnapshotChunk) error { return sendChunk(stream, c) }))
}

func sendChunk(stream grpc.ServerStreamingServer[lockstepv1.FetchSnapshotResponse], c *SnapshotChunk) error {
	r := &lockstepv1.FetchSnapshotResponse{Offset: c.Offset, Data: c.Data, Checksum: c.Checksum, Finished: c.Finished}
	if h := c.Header; h != nil {
		r.Header = &lockstepv1.SnapshotHeader{
			Id: h.ID, Position: toPosition(h.Position), FileBytes: h.FileBytes, DataBytes: h.DataBytes,
			PageSize: h.PageSize, Config: h.Config, Term: h.Term, HoldsCommitted: h.HoldsCommitted,
		}
	}
	return fromStatus(stream.Send(r))
}

type standbyStream struct {
	s grpc.BidiStreamingServer[lockstepv1.ReplicateRequest, lockstepv1.ReplicateResponse]
}

func (s standbyStream) Send(m *ActiveMessage) error {
	r := &lockstepv1.ReplicateResponse{
		Config: m.Config, Term: m.Term, Previous: toPosition(m.Previous), Records: m.Records, Last: toPosition(m.Last),
		CommitLsn: m.CommitLSN, AckRequired: m.AckRequired, CommitTimeUs: uint64(m.CommitTime.Microseconds()),
	}
	if t := m.Trace; t != nil {
		r.Trace = &lockstepv1.TraceContext{Traceparent: t.Parent, Tracestate: t.State}
	}
	if w := m.HelloResponse; w != nil {
		r.Welcome = &lockstepv1.Welcome{
			ResumeAfter: toPosition(w.ResumeAfter), SnapshotRequired: w.SnapshotRequired, Reason: w.Reason,
			Protocol: w.Protocol, OldestProtocol: w.OldestProtocol, Features: w.Features,
			HoldsCommitted: w.HoldsCommitted,
		}
	}
	return fromStatus(s.s.Send(r))
}

func (s standbyStream) Recv() (*StandbyMessage, error) {
	r, err := s.s.Recv()
	if err != nil {
		return nil, fromStatus(err)
	}
	m := &StandbyMessage{
		Config: r.GetConfig(), Term: r.GetTerm(), Durable: fromPosition(r.GetDurable()), AppliedLSN: r.GetAppliedLsn(),
	}
	if r.GetHello() == nil {
		return m, nil
	}
	m.Hello, err = fromHello(r.GetHello())
	return m, err
}

func toHello(h *Hello) *lockstepv1.Hello {
	if h == nil {
		return nil
	}
	p := &lockstepv1.Hello{
		PairId: h.Pair.String(), NodeId: h.Member.Node.String(), StoreId: h.Member.Store.String(),
		Incarnation: h.Member.Incarnation, LogEnd: toPosition(h.LogEnd), Applied: toPosition(h.Applied),
		Protocol: h.Protocol, OldestProtocol: h.OldestProtocol, Features: h.Features,
		Committed: toPosition(h.Committed), ForcedTerm: h.DiscardedTerm,
	}
	if h.Member.Generation != uuid.Nil {
		p.Run = h.Member.Generation.String()
	}
	for _, e := range h.TermEnds {
		p.TermEnds = append(p.TermEnds, toPosition(e))
	}
	return p
}

func fromHello(p *lockstepv1.Hello) (*Hello, error) {
	h := &Hello{
		LogEnd: fromPosition(p.GetLogEnd()), Applied: fromPosition(p.GetApplied()),
		Protocol: p.GetProtocol(), OldestProtocol: p.GetOldestProtocol(), Features: p.GetFeatures(),
		Committed: fromPosition(p.GetCommitted()), DiscardedTerm: p.GetForcedTerm(),
		Member: Member{Incarnation: p.GetIncarnation()},
	}
	for _, e := range p.GetTermEnds() {
		h.TermEnds = append(h.TermEnds, fromPosition(e))
	}
	err := errors.Join(parseID(p.GetPairId(), &h.Pair), parseID(p.GetNodeId(), &h.Member.Node),
		parseID(p.GetStoreId(), &h.Member.Store))
	if p.GetRun() != "" {
		err = errors.Join(err, parseID(p.GetRun(), &h.Member.Generation))
	}
	if err != nil {
		return nil, fmt.Errorf("hello: %w", err)
	}
	return h, nil
}

// parseID parses a UUID. It returns ErrProtocol for an invalid one.
func parseID(text string, to *uuid.UUID) (err error) {
	if *to, err = uuid.Parse(text); err != nil {
		return fmt.Errorf("%w: %w", ErrProtocol, err)
	}
	return nil
}

func toPosition(p lsn.Position) *lockstepv1.Position {
	if p.IsZero() {
		return nil
	}
	return &lockstepv1.Position{Term: p.Term, Lsn: p.LSN, Chain: p.Chain}
}

func fromPosition(p *lockstepv1.Position) lsn.Position {
	return lsn.Position{Term: p.GetTerm(), LSN: p.GetLsn(), Chain: p.GetChain()}
}

// statusCodes maps errors to status codes and back. All other errors map to Unavailable.
var statusCodes = []struct {
	err  error
	code codes.Code
}{
	{ErrNotActive, codes.FailedPrecondition},
	{ErrAhead, codes.Aborted},
	{ErrOtherPair, codes.PermissionDenied},
	{ErrProtocol, codes.InvalidArgument},
	{ErrLostRecords, codes.DataLoss},
	{ErrSecondStandby, codes.AlreadyExists},
	{ErrHistory, codes.OutOfRange},
	{ErrBehind, codes.NotFound},
}

func toStatus(err error) error {
	if err == nil {
		return nil
	}
	for _, c := range statusCodes {
		if errors.Is(err, c.err) {
			return status.Error(c.code, err.Error())
		}
	}
	return status.Error(codes.Unavailable, err.Error())
}

func notPeer(err error) bool {
	for _, d := range status.Convert(err).Details() {
		if info, ok := d.(*errdetails.ErrorInfo); ok &&
			reason.Parse(info.GetReason()) == lockstepv1.ErrorReason_ERROR_REASON_NOT_PEER {
			return true
		}
	}
	return false
}

func fromStatus(err error) error {
	if err == nil {
		return nil
	}
	if notPeer(err) {
		return fmt.Errorf("%w: %w", ErrNotPeer, err)
	}
	code := status.Code(err)
	for _, c := range statusCodes {
		if c.code == code {
			return fmt.Errorf("%w: %w", c.err, err)
		}
	}
	return fmt.Errorf("rpc: %w", err)
}
