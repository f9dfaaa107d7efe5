// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"context"
	"errors"
	"io"
	"iter"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// TailAudit returns the audit records of administrative calls and refusals: up to a thousand of the newest records in
// memory and, if the request sets follow, each new record until ctx ends. It ends after the first error.
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
