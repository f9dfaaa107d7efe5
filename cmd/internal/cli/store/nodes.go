// SPDX-License-Identifier: Apache-2.0

package store

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/client/admin"
	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	"github.com/lockstep-mq/lockstep/cmd/internal/output"
	"github.com/lockstep-mq/lockstep/cmd/internal/pairstatus"
)

// location selects the page file of a running or a stopped node.
type location struct {
	node    string
	dataDir string
}

func (w *location) register(cmd *cobra.Command, offline bool) {
	cmd.Flags().StringVar(&w.node, "node", pairstatus.Standby,
		"node to use: standby (or the active, if no standby is available), active, a node name or an address")
	if offline {
		cmd.Flags().StringVar(&w.dataDir, "data-dir", "", "data directory of a stopped node, instead of a running node")
		cmd.MarkFlagsMutuallyExclusive("node", "data-dir")
	}
}

type target struct {
	*admin.Node
	status pairstatus.Node
}

func (t target) label() string {
	return fmt.Sprintf("node %s (%s)", cmp.Or(t.status.Name, t.Address()), t.status.Role)
}

func onNode(ctx context.Context, env *cli.Env, want string, fn func(context.Context, target) error) error {
	return env.WithPair(ctx, func(ctx context.Context, c *client.Client) error {
		t, err := chooseNode(ctx, env, c, want)
		if err != nil {
			return err
		}
		return fn(ctx, t)
	})
}

// chooseNode returns the node with the given role, name, ID or address. Without a standby, it returns the active
// instead, which rejects operations that only a standby can perform.
func chooseNode(ctx context.Context, env *cli.Env, c *client.Client, want string) (target, error) {
	s := env.QueryNodes(ctx, c, min(env.Timeout, 2*time.Second))
	i := slices.IndexFunc(s.Nodes, func(n pairstatus.Node) bool {
		return want == n.Address || n.Error == "" &&
			(want == n.Name || want == n.NodeID || want == pairstatus.BaseRole(n.Role))
	})
	if i < 0 && want == pairstatus.Standby {
		active := func(n pairstatus.Node) bool { return pairstatus.BaseRole(n.Role) == pairstatus.Active }
		if i = slices.IndexFunc(s.Nodes, active); i >= 0 && s.Pair != nil {
			fmt.Fprintf(env.Stderr, "No standby is available; using the active, node %s.\n", s.Nodes[i].Name)
		}
	}
	address := want
	switch {
	case i >= 0:
		address = s.Nodes[i].Address
	case strings.Contains(want, ":"):
		// An address that is not in --addr is also accepted.
	case s.Answered() == 0:
		return target{}, cli.ErrNoAnswer
	default:
		return target{}, cli.Usage("--node %q does not match a responding node: %s", want,
			strings.Join(nodeNames(s), ", "))
	}
	n, err := cli.NodeAt(c, address)
	if err != nil {
		return target{}, err
	}
	t := target{Node: n, status: pairstatus.Node{Address: address, Role: "unknown"}}
	if i >= 0 {
		t.status = s.Nodes[i]
	}
	return t, nil
}

func nodeNames(s pairstatus.Status) []string {
	var names []string
	for _, n := range s.Nodes {
		if n.Error == "" {
			names = append(names, fmt.Sprintf("%s (%s)", n.Name, n.Role))
		}
	}
	return names
}

// sizeChange formats two sizes and their relative change: 669 MiB → 610 MiB (-9%).
func sizeChange(before, after uint64) string {
	s := fmt.Sprintf("%s → %s", output.Bytes(before), output.Bytes(after))
	if before > 0 {
		s += fmt.Sprintf(" (%s)", percentChange(before, after))
	}
	return s
}

func percentChange(before, after uint64) string {
	if before == 0 {
		return ""
	}
	return fmt.Sprintf("%+.0f%%", (float64(after)/float64(before)-1)*100)
}
