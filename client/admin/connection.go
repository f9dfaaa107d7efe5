// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"context"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// Connections lists one page of the connections to the node. It requires the operate permission.
func (n *Node) Connections(ctx context.Context, req *pb.ListConnectionsRequest) (*pb.ListConnectionsResponse, error) {
	resp, err := pb.NewConnectionServiceClient(n.node.Conn()).ListConnections(ctx, req)
	if err != nil {
		return nil, n.fail(ctx, "list connections", err)
	}
	return resp, nil
}

// CloseConnection closes a connection to the node by its number, and returns its description. It requires the operate
// permission. Errors: [ErrNoConnection], [client.ErrInvalid] for a connection of the other node.
func (n *Node) CloseConnection(ctx context.Context, id uint64) (*pb.Connection, error) {
	resp, err := pb.NewConnectionServiceClient(n.node.Conn()).CloseConnection(ctx, &pb.CloseConnectionRequest{Id: id})
	if err != nil {
		return nil, n.fail(ctx, "close connection", err)
	}
	return resp.GetConnection(), nil
}
