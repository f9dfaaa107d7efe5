// SPDX-License-Identifier: Apache-2.0

package console

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

const maxConnectionRows = 500

func connectionsPage() Page {
	return Page{
		Path: "/connections", Title: "Connections", Key: "n", Right: "operate", Template: "connections", Live: true,
		Load: loadConnections,
		Actions: []Action{{
			Name: "close", Title: "Close connection", Right: "operate", Dialog: "close", Danger: true,
			Load: loadConnection, Do: closeConnection,
		}},
	}
}

type connectionsView struct{ Nodes []connectionsOfNode }

type connectionsOfNode struct {
	Node  string
	Total uint32
	Rows  []connectionRow
	More  bool
	Error string // why the connections could not be read
}

type connectionRow struct {
	*pb.Connection

	Node, Caller    string
	Activity        []string
	InRate, OutRate string
	Key             string
}

func loadConnections(ctx context.Context, v *View) (any, error) {
	st, err := v.Status(ctx)
	if err != nil {
		return nil, err
	}
	d := &connectionsView{}
	nodes := st.GetPair().GetNodes()
	if len(nodes) == 0 {
		nodes = []*pb.NodeStatus{st.GetNode()}
	}
	for _, n := range nodes {
		of := connectionsOfNode{Node: n.GetName()}
		ctx, cancel := context.WithTimeout(ctx, otherTimeout)
		resp, err := v.connectionsOf(ctx, n.GetNodeId())
		cancel()
		own := n.GetNodeId() == st.GetNode().GetNodeId()
		if err != nil && (own || status.Code(err) == codes.PermissionDenied) {
			return nil, err
		}
		if err != nil {
			of.Error = describe(err).Text
		}
		of.Total, of.More = resp.GetTotal(), resp.GetMore()
		for _, c := range resp.GetConnections() {
			of.Rows = append(of.Rows, newConnectionRow(n.GetName(), c))
		}
		d.Nodes = append(d.Nodes, of)
	}
	return d, nil
}

func (v *View) connectionsOf(ctx context.Context, node string) (*pb.ListConnectionsResponse, error) {
	cc, err := v.Node(ctx, node)
	if err != nil {
		return nil, err
	}
	return pb.NewConnectionServiceClient(cc).ListConnections(ctx, &pb.ListConnectionsRequest{Limit: maxConnectionRows})
}

func newConnectionRow(node string, c *pb.Connection) connectionRow {
	row := connectionRow{
		Connection: c, Node: node, Caller: cmp.Or(c.GetPrincipal(), "not authenticated"),
		InRate: trafficText(c.GetReceived()), OutRate: trafficText(c.GetSent()), Key: fmt.Sprintf("%s-%d", node, c.GetId()),
	}
	if c.GetPeer() {
		row.Caller = "the other node"
	}
	for _, s := range c.GetStreams() {
		text := "publish " + strings.Join(s.GetQueues(), ", ")
		if s.GetKind() == pb.ConnectionStreamKind_CONNECTION_STREAM_KIND_CONSUME {
			text = fmt.Sprintf("consume %s/%s: credit %s, unacknowledged %s", strings.Join(s.GetQueues(), ", "),
				s.GetSubscription(), formatNumber(s.GetCredit()), formatNumber(s.GetUnacknowledged()))
		}
		if row.Activity = append(row.Activity, text); len(row.Activity) == 5 {
			break
		}
	}
	if more := int(c.GetStreamsTotal()) - len(row.Activity); more > 0 {
		row.Activity = append(row.Activity, fmt.Sprintf("%d more streams", more))
	}
	return row
}

func trafficText(t *pb.Traffic) string {
	if t.BytesPerSecond == nil {
		return "–"
	}
	return fmt.Sprintf("%s msg/s\n%s/s", rateText(t.MessagesPerSecond), formatBytes(t.GetBytesPerSecond()))
}

func loadConnection(ctx context.Context, v *View) (any, error) {
	resp, err := v.connectionsOf(ctx, v.Query.Get("node"))
	if err != nil {
		return nil, err
	}
	for _, c := range resp.GetConnections() {
		if strconv.FormatUint(c.GetId(), 10) == v.Query.Get("id") {
			return newConnectionRow(resp.GetNode(), c), nil
		}
	}
	return nil, invalid("The connection is already closed.")
}

func closeConnection(ctx context.Context, v *View) (Done, error) {
	id, _ := strconv.ParseUint(v.Query.Get("id"), 10, 64) // 0 is not a valid connection ID
	cc, err := v.Node(ctx, v.Query.Get("node"))
	if err != nil {
		return Done{}, err
	}
	resp, err := pb.NewConnectionServiceClient(cc).CloseConnection(ctx, &pb.CloseConnectionRequest{Id: id})
	if err != nil {
		return Done{}, err
	}
	return Done{Message: fmt.Sprintf("Closed the connection from %s.", resp.GetConnection().GetAddress())}, nil
}
