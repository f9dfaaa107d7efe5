// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"errors"
	"io"
	"iter"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// TailAudit gives what the node has recorded of administrative calls and of refusals: the newest records that it has in
// memory, up to a thousand, and, if the request says follow, each further one until ctx ends. It ends after the first
// error. Errors: ErrDenied if the caller may not read the audit.
func (n *Node) TailAudit(ctx context.Context, req *pb.TailAuditRequest) iter.Seq2[*pb.TailAuditResponse, error] {
	return func(yield func(*pb.TailAuditResponse, error) bool) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		stream, err := pb.NewAuditServiceClient(n.node.conn()).TailAudit(ctx, req)
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
