// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"fmt"
	"iter"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// Node asks one given node, whatever its role. Its calls are not repeated when they fail: an operator wants to know how
// this node is now.
type Node struct {
	node *node
}

// Node returns the node with that address, host:port; it need not be one of Options.Addresses.
// Errors: ErrInvalid, ErrClosed.
func (c *Client) Node(address string) (*Node, error) {
	n, err := c.locator.node(address)
	if err != nil {
		return nil, err
	}
	return &Node{node: n}, nil
}

// Addresses returns the addresses of all nodes that are known: first those of Options, then those learnt from nodes.
func (c *Client) Addresses() []string {
	c.locator.mu.Lock()
	defer c.locator.mu.Unlock()
	out := make([]string, len(c.locator.nodes))
	for i, n := range c.locator.nodes {
		out[i] = n.address
	}
	return out
}

// Address of the node.
func (n *Node) Address() string { return n.node.address }

// admin is the stub of the service for operators.
func (n *Node) admin() pb.AdminServiceClient { return pb.NewAdminServiceClient(n.node.conn()) }

// once calls fn, and again if it failed only because the connection was replaced under it.
func (n *Node) once(ctx context.Context, op string, fn func(pb.AdminServiceClient) error) error {
	for {
		cc := n.node.conn()
		err := fn(pb.NewAdminServiceClient(cc))
		if status.Code(err) != codes.Canceled || ctx.Err() != nil || n.node.conn() == cc {
			return n.fail(ctx, op, err)
		}
	}
}

// fail makes the error of a call to this node.
func (n *Node) fail(ctx context.Context, op string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", op, asError(ctx, n.node.address, err))
}

// Status tells what the node is and knows.
func (n *Node) Status(ctx context.Context) (*pb.GetStatusResponse, error) {
	var resp *pb.GetStatusResponse
	err := n.once(ctx, "status", func(admin pb.AdminServiceClient) (err error) {
		resp, err = admin.GetStatus(ctx, &pb.GetStatusRequest{})
		return err
	})
	return resp, err
}

// WatchStatus gives the status now and after each change. It ends after the first error.
func (n *Node) WatchStatus(ctx context.Context) iter.Seq2[*pb.GetStatusResponse, error] {
	return func(yield func(*pb.GetStatusResponse, error) bool) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		stream, err := n.admin().WatchStatus(ctx, &pb.WatchStatusRequest{})
		for err == nil {
			var resp *pb.WatchStatusResponse
			if resp, err = stream.Recv(); err == nil && !yield(resp.GetStatus(), nil) {
				return
			}
		}
		yield(nil, n.fail(ctx, "watch status", err))
	}
}

// SetPaused pauses the pair, so that no standby takes over by itself, or resumes it. Errors: ErrRefused with the reason
// when the coordinator did not take it.
func (n *Node) SetPaused(ctx context.Context, paused bool, reason string) (*pb.Pause, error) {
	resp, err := n.admin().SetPaused(ctx, &pb.SetPausedRequest{Paused: paused, Reason: reason})
	return resp.GetPaused(), n.fail(ctx, "pause", err)
}

// Switchover hands the active role to the other node and returns when that is done, or was undone. timeout 0 is the
// node's default, 10 s. Errors: ErrRefused with the reason when the pair is not in sync.
func (n *Node) Switchover(ctx context.Context, timeout time.Duration) (*pb.SwitchoverResponse, error) {
	req := &pb.SwitchoverRequest{}
	if timeout > 0 {
		req.Timeout = durationpb.New(timeout)
	}
	return n.SwitchoverTo(ctx, req)
}

// SwitchoverTo is Switchover with a node that is, or is not, to be active afterwards: it can be repeated, since a role
// that is there already is success. Errors: ErrRefused with the reason when the pair is not in sync, ErrInvalid when
// there is no such node.
func (n *Node) SwitchoverTo(ctx context.Context, req *pb.SwitchoverRequest) (*pb.SwitchoverResponse, error) {
	resp, err := n.admin().Switchover(ctx, req)
	return resp, n.fail(ctx, "switchover", err)
}

// AdoptRecord has this node write the pair's record anew, after the coordinator has lost it or was put back to an older
// state. Without Confirm nothing is done: the response says what would be. Errors: ErrRefused with the reason when
// nothing is missing, or when the other node holds more.
func (n *Node) AdoptRecord(ctx context.Context, req *pb.AdoptRecordRequest) (*pb.AdoptRecordResponse, error) {
	resp, err := n.admin().AdoptRecord(ctx, req)
	return resp, n.fail(ctx, "adopt the pair", err)
}

// ForceFailover makes this node active although it is not known to hold everything, because the node that does is lost
// for good. Without Confirm nothing is done: the response says what would be lost. Errors: ErrRefused with the reason
// when there is a better way.
func (n *Node) ForceFailover(ctx context.Context, req *pb.ForceFailoverRequest) (*pb.ForceFailoverResponse, error) {
	resp, err := n.admin().ForceFailover(ctx, req)
	return resp, n.fail(ctx, "force a failover", err)
}

// Checkpoint writes a checkpoint of this node's page file now.
func (n *Node) Checkpoint(ctx context.Context) (*pb.CheckpointResponse, error) {
	resp, err := n.admin().Checkpoint(ctx, &pb.CheckpointRequest{})
	return resp, n.fail(ctx, "checkpoint", err)
}

// Digest reads this node's whole store and hashes its logical content.
func (n *Node) Digest(ctx context.Context) (*pb.GetDigestResponse, error) {
	resp, err := n.admin().GetDigest(ctx, &pb.GetDigestRequest{})
	return resp, n.fail(ctx, "digest", err)
}

// Check walks this node's whole store, online. progress may be nil; it is called for each message of the node. The last
// one, which holds the result, is returned.
func (n *Node) Check(
	ctx context.Context, req *pb.CheckRequest, progress func(*pb.CheckResponse),
) (*pb.CheckResponse, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := n.admin().Check(ctx, req)
	if err != nil {
		return nil, n.fail(ctx, "check", err)
	}
	for {
		resp, err := stream.Recv()
		if err != nil {
			return nil, n.fail(ctx, "check", err)
		}
		if resp.GetFinished() {
			return resp, nil
		}
		if progress != nil {
			progress(resp)
		}
	}
}
