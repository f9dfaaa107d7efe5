// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"context"
	"errors"
	"io"
	"iter"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/client/internal/link"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// Node sends requests to one specific node, regardless of its role. Failed calls are not retried. Only [Node.Status],
// [Node.Fleet] and [Node.Site] are repeated, if the client replaces the connection during the call.
type Node struct {
	node link.Node
}

// Node returns the node with the given address, host:port, which need not be in Options.Addresses and can belong to
// another pair. An address that the client does not use is not added to [Client.Addresses]. The connection exists
// until the client is closed. Errors include [client.ErrInvalid], [client.ErrLimit] for more than 1024 such nodes,
// [client.ErrClosed].
func (c *Client) Node(address string) (*Node, error) {
	n, err := c.conns.Node(address)
	if err != nil {
		return nil, err
	}
	return &Node{node: n}, nil
}

// Addresses returns all known addresses of the home pair and of its other site: first the addresses in Options, then
// the addresses learned from nodes.
func (c *Client) Addresses() []string {
	return c.conns.Addresses()
}

// Address returns the address of the node.
func (n *Node) Address() string { return n.node.Address() }

func (n *Node) admin() pb.AdminServiceClient { return pb.NewAdminServiceClient(n.node.Conn()) }

// once retries fn only if its connection was replaced.
func (n *Node) once(ctx context.Context, op string, fn func(*grpc.ClientConn) error) error {
	for {
		cc := n.node.Conn()
		err := fn(cc)
		if status.Code(err) != codes.Canceled || ctx.Err() != nil || n.node.Conn() == cc {
			return n.fail(ctx, op, err)
		}
	}
}

func (n *Node) fail(ctx context.Context, op string, err error) error {
	if err == nil {
		return nil
	}
	return wrap(op, n.node.Error(ctx, err))
}

// failChange is like fail, for a request that changes state. Without a response, the error also matches
// [client.ErrOutcomeUnknown].
func (n *Node) failChange(ctx context.Context, op string, err error) error {
	if err == nil {
		return nil
	}
	return wrap(op, n.node.OnceError(ctx, err))
}

func wrap(op string, err error) error {
	message := ""
	if e, ok := errors.AsType[*client.Error](err); ok {
		message = e.Message
	}
	return link.Wrap(op, err, message)
}

// Status returns the status of the node.
func (n *Node) Status(ctx context.Context) (*pb.GetStatusResponse, error) {
	var resp *pb.GetStatusResponse
	err := n.once(ctx, "status", func(cc *grpc.ClientConn) (err error) {
		resp, err = pb.NewAdminServiceClient(cc).GetStatus(ctx, &pb.GetStatusRequest{})
		return err
	})
	return resp, err
}

// WatchStatus returns an iterator over the current status and later ones: the node sends its status after changes of
// its role or of the pair, and periodically. The iteration ends after the first error.
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

// SetPaused pauses or resumes automatic failover. Errors include [client.ErrRefused] if the cluster record cannot be
// changed, if a node does not support pauses, or on a standalone node; [client.ErrInvalid] if the reason is too long.
func (n *Node) SetPaused(ctx context.Context, paused bool, reason string) (*pb.Pause, error) {
	resp, err := n.admin().SetPaused(ctx, &pb.SetPausedRequest{Paused: paused, Reason: reason})
	return resp.GetPaused(), n.failChange(ctx, "pause", err)
}

// Switchover transfers the active role to the other node. It returns after the transfer has completed or was rolled
// back. If timeout is 0, the node's default of 10 s applies. Errors include [client.ErrRefused] if the pair is not in
// sync.
func (n *Node) Switchover(ctx context.Context, timeout time.Duration) (*pb.SwitchoverResponse, error) {
	req := &pb.SwitchoverRequest{}
	if timeout > 0 {
		req.Timeout = durationpb.New(timeout)
	}
	return n.SwitchoverTo(ctx, req)
}

// SwitchoverTo is [Node.Switchover] with an explicit target: the node that must, or must not, be active afterwards.
// The call is idempotent. Errors include [client.ErrRefused] if the pair is not in sync, [client.ErrInvalid] if the
// node does not exist.
func (n *Node) SwitchoverTo(ctx context.Context, req *pb.SwitchoverRequest) (*pb.SwitchoverResponse, error) {
	resp, err := n.admin().Switchover(ctx, req)
	return resp, n.failChange(ctx, "switchover", err)
}

// AdoptRecord rebuilds the cluster record from the state of this node after the coordinator lost it or was restored
// from an older copy. Without Confirm, the call is a dry run: the response describes the changes. Errors include
// [client.ErrRefused] if nothing is missing, or if the other node has more data.
func (n *Node) AdoptRecord(ctx context.Context, req *pb.AdoptRecordRequest) (*pb.AdoptRecordResponse, error) {
	resp, err := n.admin().AdoptRecord(ctx, req)
	if !req.GetConfirm() {
		return resp, n.fail(ctx, "adopt the pair", err)
	}
	return resp, n.failChange(ctx, "adopt the pair", err)
}

// ForceFailover makes this node active although acknowledged messages may be missing on it. Use it if the node that
// has these messages is permanently lost. Without Confirm, the call is a dry run: the response describes the data
// that would be lost. Errors include [client.ErrRefused] if a safe alternative exists.
func (n *Node) ForceFailover(ctx context.Context, req *pb.ForceFailoverRequest) (*pb.ForceFailoverResponse, error) {
	resp, err := n.admin().ForceFailover(ctx, req)
	if !req.GetConfirm() {
		return resp, n.fail(ctx, "force a failover", err)
	}
	return resp, n.failChange(ctx, "force a failover", err)
}

// Checkpoint writes a checkpoint to the page file of this node.
func (n *Node) Checkpoint(ctx context.Context) (*pb.CheckpointResponse, error) {
	resp, err := n.admin().Checkpoint(ctx, &pb.CheckpointRequest{})
	return resp, n.fail(ctx, "checkpoint", err)
}

// Digest reads the whole store of this node and returns a hash of its logical content.
func (n *Node) Digest(ctx context.Context) (*pb.GetDigestResponse, error) {
	resp, err := n.admin().GetDigest(ctx, &pb.GetDigestRequest{})
	return resp, n.fail(ctx, "digest", err)
}

// Check verifies the whole store of this node online. It returns the last response, which contains the result;
// progress, if not nil, is called for the earlier responses.
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

// TailAudit returns an iterator over the audit records of administrative calls and refusals. The first elements
// contain the newest records in the memory of the node: as many as the request asks for, at most 1,000. If the
// request sets Follow, the iterator then returns each new record until ctx ends. The iteration ends after the first
// error.
func (n *Node) TailAudit(ctx context.Context, req *pb.TailAuditRequest) iter.Seq2[*pb.TailAuditResponse, error] {
	return func(yield func(*pb.TailAuditResponse, error) bool) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		stream, err := pb.NewAuditServiceClient(n.node.Conn()).TailAudit(ctx, req)
		for err == nil {
			var resp *pb.TailAuditResponse
			if resp, err = stream.Recv(); err == nil && !yield(resp, nil) {
				return
			}
		}
		if !errors.Is(err, io.EOF) {
			yield(nil, n.fail(ctx, "audit", err))
		}
	}
}

// Connections lists one page of the connections to the node. It requires the operate permission.
func (n *Node) Connections(ctx context.Context, req *pb.ListConnectionsRequest) (*pb.ListConnectionsResponse, error) {
	resp, err := pb.NewConnectionServiceClient(n.node.Conn()).ListConnections(ctx, req)
	if err != nil {
		return nil, n.fail(ctx, "list connections", err)
	}
	return resp, nil
}

// CloseConnection closes a connection to the node by its number, and returns its description. It requires the operate
// permission. Errors include [ErrNoConnection], [client.ErrInvalid] for a connection of the other node.
func (n *Node) CloseConnection(ctx context.Context, id uint64) (*pb.Connection, error) {
	resp, err := pb.NewConnectionServiceClient(n.node.Conn()).CloseConnection(ctx, &pb.CloseConnectionRequest{Id: id})
	if err != nil {
		return nil, n.failChange(ctx, "close connection", err)
	}
	return resp.GetConnection(), nil
}

// Verify compares the data of the two nodes; it must be called on the active node. Differences and unreadable
// messages are part of the result. Errors include [client.ErrRefused] if no standby is in sync.
func (n *Node) Verify(ctx context.Context, req *pb.VerifyRequest) (*pb.VerifyResponse, error) {
	resp, err := n.admin().Verify(ctx, req)
	return resp, n.fail(ctx, "verify", err)
}

// Scrub reads every page and the whole log of this node from disk, and repairs corruption where possible. Unless the
// request asks for full speed, the scrub pauses for clients.
func (n *Node) Scrub(ctx context.Context, req *pb.ScrubRequest) (*pb.ScrubResponse, error) {
	resp, err := n.admin().Scrub(ctx, req)
	return resp, n.fail(ctx, "scrub", err)
}

// DropDamaged acknowledges, for all subscriptions, the messages of a queue that are corrupt on both nodes of the pair,
// or on a standalone node. These messages are lost. DropDamaged must be called on the active node. Errors include
// [client.ErrQueueNotFound].
func (n *Node) DropDamaged(ctx context.Context, req *pb.DropDamagedRequest) (*pb.DropDamagedResponse, error) {
	resp, err := n.admin().DropDamaged(ctx, req)
	if req.GetDryRun() {
		return resp, n.fail(ctx, "drop corrupt messages", err)
	}
	return resp, n.failChange(ctx, "drop corrupt messages", err)
}
