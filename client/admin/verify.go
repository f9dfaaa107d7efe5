// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"context"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// Verify compares the data of the two nodes; it must be called on the active node. Differences and unreadable messages
// are part of the result. Errors: [client.ErrRefused] if no standby is in sync.
func (n *Node) Verify(ctx context.Context, req *pb.VerifyRequest) (*pb.VerifyResponse, error) {
	resp, err := n.admin().Verify(ctx, req)
	return resp, n.fail(ctx, "verify", err)
}

// Scrub reads every page and the whole log of this node from disk, and repairs corruption where possible. The node's
// scrub.rate applies, unless it runs at full speed.
func (n *Node) Scrub(ctx context.Context, req *pb.ScrubRequest) (*pb.ScrubResponse, error) {
	resp, err := n.admin().Scrub(ctx, req)
	return resp, n.fail(ctx, "scrub", err)
}

// DropDamaged acknowledges, for all subscriptions, the messages of a queue that are corrupt on both nodes; they are
// lost. It must be called on the active node. Errors: [client.ErrQueueNotFound].
func (n *Node) DropDamaged(ctx context.Context, req *pb.DropDamagedRequest) (*pb.DropDamagedResponse, error) {
	resp, err := n.admin().DropDamaged(ctx, req)
	return resp, n.fail(ctx, "drop damaged messages", err)
}
