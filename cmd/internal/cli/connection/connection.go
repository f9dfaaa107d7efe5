// SPDX-License-Identifier: Apache-2.0

// Package connection implements the commands for the client connections of the nodes.
package connection

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/client/admin"
	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	"github.com/lockstep-mq/lockstep/cmd/internal/output"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// Command returns the `lockstep connection` command.
func Command(env *cli.Env) *cobra.Command {
	cmd := &cobra.Command{
		Use: "connection", Aliases: []string{"connections"}, GroupID: "operate",
		Short: "List and close client connections",
		Long:  "List and close the connections of clients. The commands require the operate right.",
		Args:  cli.KnownSubcommand,
		RunE:  cli.NeedsSubcommand,
	}
	cmd.AddCommand(listCommand(env), closeCommand(env))
	return cmd
}

type connectionState struct {
	Node           string        `json:"node"`
	ID             uint64        `json:"id"`
	Address        string        `json:"address"`
	Since          time.Time     `json:"since"`
	Principal      string        `json:"principal"`
	Authentication string        `json:"authentication"`
	Client         string        `json:"client"`
	TLS            string        `json:"tls"`
	Protocol       string        `json:"protocol"`
	Peer           bool          `json:"peer"`
	Received       trafficState  `json:"received"`
	Sent           trafficState  `json:"sent"`
	StreamsTotal   uint32        `json:"streams_total"`
	Streams        []streamState `json:"streams"`
}

type trafficState struct {
	Bytes             uint64   `json:"bytes"`
	Messages          uint64   `json:"messages"`
	BytesPerSecond    *float64 `json:"bytes_per_second,omitempty"`
	MessagesPerSecond *float64 `json:"messages_per_second,omitempty"`
}

type streamState struct {
	Kind           string    `json:"kind"`
	Queues         []string  `json:"queues"`
	Subscription   string    `json:"subscription,omitempty"`
	Since          time.Time `json:"since"`
	Messages       uint64    `json:"messages"`
	Credit         uint64    `json:"credit"`
	Unacknowledged uint64    `json:"unacknowledged"`
}

func newConnectionState(node string, c *pb.Connection) connectionState {
	state := connectionState{
		Node: node, ID: c.GetId(), Address: c.GetAddress(), Since: c.GetSince().AsTime(), Principal: c.GetPrincipal(),
		Authentication: c.GetAuthentication(), Client: c.GetClient(), TLS: c.GetTls(), Peer: c.GetPeer(),
		Received: newTrafficState(c.GetReceived()), Sent: newTrafficState(c.GetSent()),
		StreamsTotal: c.GetStreamsTotal(), Streams: []streamState{}, Protocol: cmp.Or(c.GetProtocol(), "gRPC"),
	}
	for _, s := range c.GetStreams() {
		state.Streams = append(state.Streams, streamState{
			Kind:   strings.ToLower(strings.TrimPrefix(s.GetKind().String(), "CONNECTION_STREAM_KIND_")),
			Queues: append([]string{}, s.GetQueues()...), Subscription: s.GetSubscription(), Since: s.GetSince().AsTime(),
			Messages: s.GetMessages(), Credit: s.GetCredit(), Unacknowledged: s.GetUnacknowledged(),
		})
	}
	return state
}

func newTrafficState(t *pb.Traffic) trafficState {
	return trafficState{
		Bytes: t.GetBytes(), Messages: t.GetMessages(), BytesPerSecond: t.BytesPerSecond,
		MessagesPerSecond: t.MessagesPerSecond,
	}
}

func listCommand(env *cli.Env) *cobra.Command {
	req := &pb.ListConnectionsRequest{}
	cmd := &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List the connections to the nodes in --addr",
		Long: `List the connections to each node in --addr, with the queues of their open publish and consume streams. The
throughput is measured for about one second. An ID is unique only within its node.

If a node does not respond, its connections are missing, and the exit code is 1.`,
		Example: "  lockstep connection list\n  lockstep connection list --queue orders\n" +
			"  lockstep connection list --output json",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return env.WithTimeout(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				return list(ctx, env, c, req)
			})
		},
	}
	cmd.Flags().StringVar(&req.Queue, "queue", "",
		"only connections with an open publish or consume stream for this queue")
	return cmd
}

func list(ctx context.Context, env *cli.Env, c *client.Client, req *pb.ListConnectionsRequest) error {
	if states, err := queryAll(ctx, env, c, req); len(states) == 0 && err != nil { // starts the measurement of rates
		return err
	}
	if err := cli.WaitRates(ctx); err != nil {
		return err
	}
	states, failed := queryAll(ctx, env, c, req)
	if len(states) == 0 && failed != nil {
		return failed
	}
	if err := env.Print.Object(states); err != nil {
		return err
	}
	rows := make([][]any, len(states))
	for i := range states {
		s := &states[i]
		rows[i] = []any{
			s.Node, s.ID, identityText(s), s.Address, s.Protocol, cmp.Or(s.TLS, "none"), s.Client, output.LocalTime(s.Since),
			activityText(s),
			perSecond(s.Received), perSecond(s.Sent),
		}
	}
	if len(rows) == 0 {
		return env.Print.Sentence("no connections")
	}
	if err := env.Print.Table([]string{
		"Node", "ID", "Principal", "Address", "Protocol", "TLS", "Client", "Since", "Streams", "In/s", "Out/s",
	}, rows); err != nil {
		return err
	}
	return failed
}

// queryAll returns the connections of the nodes that respond, and the joined errors of the other nodes.
func queryAll(
	ctx context.Context, env *cli.Env, c *client.Client, req *pb.ListConnectionsRequest,
) ([]connectionState, error) {
	nodes, err := env.Nodes(c)
	if err != nil {
		return nil, err
	}
	lists, failed := cli.QueryEach(nodes, func(n *admin.Node) ([]connectionState, error) { return query(ctx, n, req) })
	return append([]connectionState{}, slices.Concat(lists...)...), failed
}

func query(ctx context.Context, n *admin.Node, req *pb.ListConnectionsRequest) (list []connectionState, err error) {
	for after := uint64(0); ; {
		resp, err := n.Connections(ctx, &pb.ListConnectionsRequest{Queue: req.GetQueue(), AfterId: after})
		if err != nil {
			return list, err
		}
		for _, c := range resp.GetConnections() {
			list = append(list, newConnectionState(resp.GetNode(), c))
			after = c.GetId()
		}
		if !resp.GetMore() {
			return list, nil
		}
	}
}

func identityText(s *connectionState) string {
	if s.Peer {
		return "the other node"
	}
	return s.Principal
}

func activityText(s *connectionState) string {
	var texts []string
	for _, stream := range s.Streams {
		text := stream.Kind + " " + strings.Join(stream.Queues, " ")
		if stream.Kind == "consume" {
			text += fmt.Sprintf("/%s (%s)", stream.Subscription, output.Plural(stream.Unacknowledged, "message")+" in flight")
		}
		texts = append(texts, text)
	}
	if more := int(s.StreamsTotal) - len(texts); more > 0 {
		texts = append(texts, fmt.Sprintf("%d more", more))
	}
	return strings.Join(texts, ", ")
}

func perSecond(t trafficState) string {
	if t.BytesPerSecond == nil {
		return ""
	}
	text := output.Bytes(uint64(*t.BytesPerSecond))
	if n := *t.MessagesPerSecond; n > 0 {
		text = fmt.Sprintf("%s messages, %s", output.Count(uint64(n+0.5)), text)
	}
	return text
}

func closeCommand(env *cli.Env) *cobra.Command {
	var node string
	cmd := &cobra.Command{
		Use: "close ID", Short: "Close a client connection",
		Long: `Close a client connection on the active node, or on the node in --node. To list the IDs, use
lockstep connection list. The connection of the other node of the pair cannot be closed.

Messages that the client has not acknowledged can be redelivered. The client can connect again.`,
		Example: "  lockstep connection list\n  lockstep connection close 17\n" +
			"  lockstep connection close 4 --node b",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			id, err := strconv.ParseUint(args[0], 10, 64)
			if err != nil || id == 0 {
				return cli.Usage("invalid connection ID %q; to list the IDs, use lockstep connection list", args[0])
			}
			return env.WithPairTimeout(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				n, err := nodeCalled(ctx, env, c, node)
				if err != nil {
					return err
				}
				closed, err := n.CloseConnection(ctx, id)
				if err != nil {
					return err
				}
				return env.Print.Result(newConnectionState("", closed), "closed connection %d of %s from %s", id,
					cmp.Or(closed.GetPrincipal(), "unauthenticated"),
					closed.GetAddress())
			})
		},
	}
	cmd.Flags().StringVar(&node, "node", "", "name of a node in --addr; default: the active node")
	return cmd
}

// nodeCalled returns the node with the given name. An empty name selects the active node.
func nodeCalled(ctx context.Context, env *cli.Env, c *client.Client, name string) (*admin.Node, error) {
	if name == "" {
		active, err := c.WaitActive(ctx)
		if err != nil {
			return nil, err
		}
		return cli.NodeAt(c, active.Address)
	}
	nodes, err := env.Nodes(c)
	if err != nil {
		return nil, err
	}
	var failed []error
	for _, n := range nodes {
		resp, err := n.Connections(ctx, &pb.ListConnectionsRequest{Limit: 1})
		switch {
		case err != nil:
			failed = append(failed, err)
		case resp.GetNode() == name:
			return n, nil
		}
	}
	failed = append(failed, cli.Usage("no node in --addr is named %q", name))
	return nil, errors.Join(failed...)
}
