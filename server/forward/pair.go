// SPDX-License-Identifier: Apache-2.0

package forward

import (
	"context"
	"errors"
	"io"
	"slices"
	"sync"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/status"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/proto/reason"
)

const (
	// dialTimeout limits the attempt to connect to one node.
	dialTimeout  = 2 * time.Second
	firstPause   = 2 * time.Millisecond // first wait between two attempts
	longestPause = 50 * time.Millisecond
)

// pairConn is the connection of one caller to the active node of another pair. Its calls have the rights of the caller.
type pairConn struct {
	client *Client
	name   string

	mu        sync.Mutex // guards the fields below
	addresses []string
	at        string // address of the node to which calls are sent
	conns     map[string]Conn
	closed    bool
}

// setAddresses replaces the addresses of the nodes, and closes failed connections to former addresses. An empty list
// has no effect.
func (p *pairConn) setAddresses(addresses []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(addresses) == 0 {
		return
	}
	p.addresses = slices.Clone(addresses)
	if !slices.Contains(p.addresses, p.at) {
		p.at = p.addresses[0]
	}
	for address, c := range p.conns {
		if !slices.Contains(p.addresses, address) && c.GetState() == connectivity.TransientFailure {
			_ = c.Close() // fails only if it is already closed
			delete(p.conns, address)
		}
	}
}

func (p *pairConn) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	for _, c := range p.conns {
		_ = c.Close() // fails only if it is already closed
	}
	clear(p.conns)
}

func (p *pairConn) unavailable() error {
	return status.Errorf(codes.Unavailable, "no active node of pair %s responds", p.name)
}

// target returns the connection to the node to which calls are sent.
func (p *pairConn) target() (address string, c Conn, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || p.at == "" {
		return "", nil, p.unavailable()
	}
	if c = p.conns[p.at]; c != nil && c.GetState() == connectivity.TransientFailure {
		_ = c.Close() // until its next attempt succeeds, it would return the error of the last one
		c = nil
	}
	if c == nil {
		if c, err = p.client.o.Dial(p.at); err != nil {
			return p.at, nil, status.Errorf(codes.Unavailable, "connect to pair %s at %s: %v", p.name, p.at, err)
		}
		p.conns[p.at] = c
	}
	return p.at, c, nil
}

// ready returns an established connection to a node, preferably to the one that was active last.
func (p *pairConn) ready(ctx context.Context) (address string, c Conn, err error) {
	p.mu.Lock()
	attempts := len(p.addresses) + 1
	p.mu.Unlock()
	for range attempts {
		address, c, err = p.target()
		if err != nil && address == "" {
			return "", nil, err
		}
		if err == nil && established(ctx, c) {
			return address, c, nil
		}
		if ctx.Err() != nil {
			return "", nil, status.FromContextError(ctx.Err()).Err()
		}
		p.leave(address, "")
	}
	return "", nil, p.unavailable()
}

func established(ctx context.Context, c Conn) bool {
	if c.GetState() == connectivity.Ready {
		return true
	}
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	for {
		state := c.GetState()
		switch state {
		case connectivity.Ready:
			return true
		case connectivity.TransientFailure, connectivity.Shutdown:
			return false
		case connectivity.Idle:
			c.Connect()
		case connectivity.Connecting:
		}
		if !c.WaitForStateChange(ctx, state) {
			return false
		}
	}
}

// leave sends the next calls to another node: that at hint or, if hint is empty, the next one.
func (p *pairConn) leave(address, hint string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch i := slices.Index(p.addresses, address); {
	case p.at != address: // another call has already changed the node
	case hint != "":
		p.at = hint
	case len(p.addresses) > 0:
		p.at = p.addresses[(i+1)%len(p.addresses)]
	}
}

// observe processes an error of a node. After an error of the connection, or if the node is not active, the next calls
// are sent to another node. It reports whether the node was not active.
func (p *pairConn) observe(address string, err error) (notActive bool) {
	if err == nil || errors.Is(err, io.EOF) {
		return false
	}
	st := status.Convert(err)
	why, hint := "", ""
	for _, d := range st.Details() {
		switch d := d.(type) {
		case *errdetails.ErrorInfo:
			if d.GetDomain() == reason.Domain {
				why = d.GetReason()
			}
		case *pb.NotActive:
			hint = d.GetActiveAddress()
		}
	}
	if notActive = why == "NOT_ACTIVE" || why == "REPLICA"; notActive && hint == address {
		hint = ""
	}
	if notActive || why == "" && st.Code() == codes.Unavailable {
		p.leave(address, hint)
	}
	return notActive
}

// Invoke makes a unary call. While no node of the pair is active, it waits for at most Options.Wait.
func (p *pairConn) Invoke(ctx context.Context, method string, args, reply any, o ...grpc.CallOption) error {
	out, err := p.client.outgoing(ctx)
	if err != nil {
		return err
	}
	limit := time.Now().Add(p.client.o.Wait)
	for pause := firstPause; ; pause = min(2*pause, longestPause) {
		address, c, err := p.ready(out)
		if err == nil {
			err = c.Invoke(out, method, args, reply, o...)
			if !p.observe(address, err) {
				return err //nolint:wrapcheck // a status
			}
		}
		if time.Now().After(limit) || !sleep(ctx, pause) {
			return p.hidden(err)
		}
	}
}

// hidden returns the error of a call that was not executed.
func (p *pairConn) hidden(err error) error {
	return status.Errorf(codes.Unavailable, "pair %s: %s", p.name, status.Convert(err).Message())
}

// NewStream starts a streaming call, preferably to the node that was active last.
func (p *pairConn) NewStream(
	ctx context.Context, d *grpc.StreamDesc, method string, o ...grpc.CallOption,
) (grpc.ClientStream, error) {
	out, err := p.client.outgoing(ctx)
	if err != nil {
		return nil, err
	}
	address, c, err := p.ready(out)
	if err != nil {
		return nil, err
	}
	s, err := c.NewStream(out, d, method, o...)
	if err != nil {
		p.observe(address, err)
		return nil, err //nolint:wrapcheck // a status
	}
	return &pairStream{ClientStream: s, pair: p, address: address}, nil
}

type pairStream struct {
	grpc.ClientStream

	pair    *pairConn
	address string
}

// RecvMsg implements grpc.ClientStream.
func (s *pairStream) RecvMsg(m any) error {
	err := s.ClientStream.RecvMsg(m)
	if err != nil {
		s.pair.observe(s.address, err)
	}
	return err //nolint:wrapcheck // a status
}

func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
