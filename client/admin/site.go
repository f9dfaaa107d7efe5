// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// maxDigestBytes limits the response of VerifySites. It exceeds the size of a response that lists the maximum number of
// queues.
const maxDigestBytes = 64 << 20

func (n *Node) sites() pb.SiteServiceClient { return pb.NewSiteServiceClient(n.node.Conn()) }

// Site returns the state of the node's pair in a group of sites, and the last known state of the other site. Only the
// active node reports the other site.
func (n *Node) Site(ctx context.Context) (*pb.GetSiteResponse, error) {
	for {
		cc := n.node.Conn()
		resp, err := pb.NewSiteServiceClient(cc).GetSite(ctx, &pb.GetSiteRequest{})
		if status.Code(err) != codes.Canceled || ctx.Err() != nil || n.node.Conn() == cc { // retried as in once
			return resp, n.fail(ctx, "site", err)
		}
	}
}

// SwitchSite moves the primary role to the other site without loss. The node must be the active of the primary.
// Errors include [client.ErrRefused] if the role does not permit the switch, if the other site does not respond, or
// if the switch was rolled back; [client.ErrInvalid]; [client.ErrOutcomeUnknown], after which the other site may be
// the primary.
func (n *Node) SwitchSite(ctx context.Context, req *pb.SwitchSiteRequest) (*pb.SwitchSiteResponse, error) {
	resp, err := n.sites().SwitchSite(ctx, req)
	return resp, n.failChange(ctx, "switch the site", err)
}

// PromoteSite makes a replica, or a primary that has stopped for a switch, the primary. Transactions that the site
// has not received are lost. The node must be the active of its pair. Errors include [client.ErrRefused] if the role
// does not permit the promotion or, without Force, if the primary responds; [client.ErrInvalid] without a reason.
func (n *Node) PromoteSite(ctx context.Context, req *pb.PromoteSiteRequest) (*pb.PromoteSiteResponse, error) {
	resp, err := n.sites().PromoteSite(ctx, req)
	return resp, n.failChange(ctx, "promote the site", err)
}

// VerifySites compares the rolling digests of both sites at the same transaction. The node must be the active of
// either site. Errors include [client.ErrRefused] if the pair has no replica, or the sites cannot be compared.
func (n *Node) VerifySites(ctx context.Context) (*pb.VerifySitesResponse, error) {
	resp, err := n.sites().VerifySites(ctx, &pb.VerifySitesRequest{}, grpc.MaxCallRecvMsgSize(maxDigestBytes))
	return resp, n.fail(ctx, "compare the sites", err)
}

// PullSnapshot opens a stream with a checkpoint of this node's pair. The node must be the active. Errors of the stream
// are gRPC statuses.
func (n *Node) PullSnapshot(
	ctx context.Context, req *pb.PullSnapshotRequest, o ...grpc.CallOption,
) (grpc.ServerStreamingClient[pb.PullSnapshotResponse], error) {
	return n.sites().PullSnapshot(ctx, req, o...)
}

// DemoteSite makes a pair the replica of another pair. The node must be the active of the pair to demote. Errors
// include [client.ErrRefused] if the pair has transactions that the primary lacks, if the primary does not respond,
// or if site.name or site.remote is not set.
func (n *Node) DemoteSite(ctx context.Context, req *pb.DemoteSiteRequest) (*pb.DemoteSiteResponse, error) {
	resp, err := n.sites().DemoteSite(ctx, req)
	return resp, n.failChange(ctx, "demote the site", err)
}
