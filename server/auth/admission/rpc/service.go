// SPDX-License-Identifier: Apache-2.0

// Package rpc implements lockstep.v1.ConnectionService, which lists and closes the connections to a node.
package rpc

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/server/api/apierror"
	"github.com/lockstep-mq/lockstep/server/auth/admission"
)

const (
	maxPage    = 1000 // maximum number of connections in a response
	maxStreams = 100  // maximum number of streams described for each connection
	maxQueues  = 10
	// sampleEvery is the minimum interval between rate samples, which are taken when connections are listed. Rates
	// are reported only if the previous sample is at most sampleMax old.
	sampleEvery = time.Second
	sampleMax   = 10 * time.Second
)

// Service implements lockstep.v1.ConnectionService. It is safe for concurrent use.
type Service struct {
	pb.UnimplementedConnectionServiceServer

	listener *admission.Listener
	node     string

	mu    sync.Mutex // guards the fields below
	at    time.Time
	rates map[uint64]rates
}

type rates struct {
	received, sent admission.Traffic // counters at the last sample
	known          bool              // in and out are valid
	in, out        [2]float64        // bytes and messages per second
}

// New creates the service for the named node.
func New(l *admission.Listener, node string) *Service { return &Service{listener: l, node: node} }

// ListConnections returns the connections to the node.
func (s *Service) ListConnections(
	_ context.Context, req *pb.ListConnectionsRequest,
) (*pb.ListConnectionsResponse, error) {
	all := s.listener.List()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sample(all)
	resp := &pb.ListConnectionsResponse{Node: s.node, Total: uint32(len(all))}
	limit := int(req.GetLimit())
	if limit == 0 || limit > maxPage {
		limit = maxPage
	}
	for i := range all {
		info := &all[i]
		if info.ID <= req.GetAfterId() || req.GetQueue() != "" && !uses(info, req.GetQueue()) {
			continue
		}
		if len(resp.GetConnections()) == limit {
			resp.More = true
			break
		}
		resp.Connections = append(resp.Connections, s.toProto(info))
	}
	return resp, nil
}

// CloseConnection closes the connection of a client.
func (s *Service) CloseConnection(
	_ context.Context, req *pb.CloseConnectionRequest,
) (*pb.CloseConnectionResponse, error) {
	info, err := s.listener.CloseConnection(req.GetId())
	if errors.Is(err, admission.ErrPeerConnection) {
		err = apierror.Invalid(err)
	}
	if err != nil {
		return nil, apierror.ToStatus(fmt.Errorf("close connection %d of node %s: %w", req.GetId(), s.node, err))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return &pb.CloseConnectionResponse{Connection: s.toProto(&info)}, nil
}

func uses(info *admission.Info, queue string) bool {
	return slices.ContainsFunc(info.Streams, func(stream admission.StreamInfo) bool {
		return slices.Contains(stream.Queues, queue)
	})
}

// sample updates the rates, at most once per sampleEvery. The caller must hold mu.
func (s *Service) sample(all []admission.Info) {
	now := time.Now()
	elapsed := now.Sub(s.at)
	if elapsed < sampleEvery {
		return
	}
	next := make(map[uint64]rates, len(all))
	for i := range all {
		info := &all[i]
		r := rates{received: info.Received, sent: info.Sent}
		if before, known := s.rates[info.ID]; known && elapsed <= sampleMax {
			r.known = true
			r.in = perSecond(before.received, r.received, elapsed.Seconds())
			r.out = perSecond(before.sent, r.sent, elapsed.Seconds())
		}
		next[info.ID] = r
	}
	s.at, s.rates = now, next
}

func perSecond(before, now admission.Traffic, seconds float64) [2]float64 {
	return [2]float64{float64(now.Bytes-before.Bytes) / seconds, float64(now.Messages-before.Messages) / seconds}
}

// toProto converts the description of a connection and adds its rates. The caller must hold mu.
func (s *Service) toProto(info *admission.Info) *pb.Connection {
	out := &pb.Connection{
		Id: info.ID, Address: info.Address, Since: timestamppb.New(info.Since), Principal: info.Principal,
		Authentication: info.Authentication, Client: info.Client, Tls: info.TLS, Peer: info.Peer, Protocol: info.Protocol,
		Received: &pb.Traffic{Bytes: info.Received.Bytes, Messages: info.Received.Messages},
		Sent:     &pb.Traffic{Bytes: info.Sent.Bytes, Messages: info.Sent.Messages}, StreamsTotal: uint32(len(info.Streams)),
	}
	if r := s.rates[info.ID]; r.known {
		out.Received.BytesPerSecond, out.Received.MessagesPerSecond = new(r.in[0]), new(r.in[1])
		out.Sent.BytesPerSecond, out.Sent.MessagesPerSecond = new(r.out[0]), new(r.out[1])
	}
	for i := range info.Streams[:min(len(info.Streams), maxStreams)] {
		stream := &info.Streams[i]
		described := &pb.ConnectionStream{
			Kind:   pb.ConnectionStreamKind_CONNECTION_STREAM_KIND_PUBLISH,
			Queues: stream.Queues[:min(len(stream.Queues), maxQueues)], Subscription: stream.Subscription,
			Since: timestamppb.New(stream.Since), Messages: stream.Messages,
			Credit: stream.Credit, Unacknowledged: stream.Unacknowledged,
		}
		if stream.Consumes {
			described.Kind = pb.ConnectionStreamKind_CONNECTION_STREAM_KIND_CONSUME
		}
		out.Streams = append(out.Streams, described)
	}
	return out
}
