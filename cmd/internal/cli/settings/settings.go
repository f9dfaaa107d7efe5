// SPDX-License-Identifier: Apache-2.0

// Package settings implements the commands for settings that can be changed while the nodes run. The maintenance
// settings are in package store.
package settings

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/client/admin"
	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/server/config"
)

// Command returns the `lockstep settings` command.
func Command(env *cli.Env) *cobra.Command {
	cmd := &cobra.Command{
		Use: "settings", GroupID: "operate",
		Short: "Show and change settings at run time",
		Long: `Some settings can be changed without a restart: see lockstep settings list. The changed values take precedence
over the configuration of the nodes, and survive restarts, until lockstep settings unset.

All other settings, except maintenance settings (lockstep store settings), are read at startup. After a change of the
configuration files of a pair, use lockstep restart. It keeps flags and environment variables: after a change of
these, and on a standalone node, restart the process of the node.`,
		Args: cli.KnownSubcommand,
		RunE: cli.NeedsSubcommand,
	}
	cmd.AddCommand(listCommand(env), getCommand(env), setCommand(env), unsetCommand(env))
	return cmd
}

type runningSetting struct {
	Name       string            `json:"name"`
	KeptBy     string            `json:"kept_by"` // pair or node
	Value      string            `json:"value"`   // common value, or the value of each node if they differ
	Nodes      map[string]string `json:"nodes"`   // value by node name
	Configured map[string]string `json:"configured"`
	Changed    bool              `json:"changed"`
	Usage      string            `json:"usage"`
}

// text returns the common value, or the value of each node if they differ.
func (r *runningSetting) text(values map[string]string) string {
	var texts []string
	names := slices.Sorted(maps.Keys(values))
	equal := true
	for _, name := range names {
		texts = append(texts, name+": "+values[name])
		equal = equal && values[name] == values[names[0]]
	}
	if equal && len(names) > 0 {
		return values[names[0]]
	}
	return strings.Join(texts, ", ")
}

// answer contains the settings of one node.
type answer struct {
	node     string
	settings []*pb.RunningSetting
}

// queryRunning returns the settings of the nodes that respond, and the joined errors of the other nodes.
func queryRunning(ctx context.Context, env *cli.Env, c *client.Client) (list []*runningSetting, _ error) {
	nodes, err := env.Nodes(c)
	if err != nil {
		return nil, err
	}
	answers, failed := cli.QueryEach(nodes, func(n *admin.Node) (answer, error) {
		st, err := n.Status(ctx)
		if err != nil {
			return answer{}, err
		}
		settings, err := n.RunningSettings(ctx)
		return answer{st.GetNode().GetName(), settings}, err
	})
	for _, a := range answers {
		for _, s := range a.settings {
			at := slices.IndexFunc(list, func(r *runningSetting) bool { return r.Name == s.GetName() })
			if at < 0 {
				at = len(list)
				list = append(list, &runningSetting{
					Name: s.GetName(), KeptBy: s.GetScope(), Usage: s.GetUsage(), Nodes: map[string]string{},
					Configured: map[string]string{},
				})
			}
			r := list[at]
			r.Nodes[a.node], r.Configured[a.node] = s.GetValue(), s.GetConfigured()
			r.Changed = r.Changed || s.GetChanged()
			r.Value = r.text(r.Nodes)
		}
	}
	return list, failed
}

func listCommand(env *cli.Env) *cobra.Command {
	return &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List settings that need no restart",
		Long: `List the settings that can be changed without a restart, with their current values and the sources of these
values. Values that differ between the nodes in --addr are shown for each node. If a node does not respond, its values
are missing, and the exit code is 1.`,
		Example: "  lockstep settings list\n  lockstep settings list --output json",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return env.WithPairTimeout(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				list, failed := queryRunning(ctx, env, c)
				if len(list) == 0 {
					return failed
				}
				rows := make([][]any, 0, len(list))
				for _, r := range list {
					if err := env.Print.Object(r); err != nil {
						return err
					}
					from := "configuration"
					if r.Changed {
						from = "run time; configured: " + r.text(r.Configured)
					}
					rows = append(rows, []any{r.Name, r.Value, r.KeptBy, from})
				}
				err := env.Print.Table([]string{"Setting", "Value", "Scope", "Source"}, rows)
				return errors.Join(err, failed)
			})
		},
	}
}

func getCommand(env *cli.Env) *cobra.Command {
	return &cobra.Command{
		Use: "get NAME", Short: "Show one setting",
		Long: `Show the current value of a setting that can be changed without a restart. To list the names, use lockstep
settings list. If a node in --addr does not respond, its value is missing, and the exit code is 1.`,
		Example: "  lockstep settings get log.level",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if _, err := findRunning(args[0]); err != nil {
				return err
			}
			return env.WithPairTimeout(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				list, failed := queryRunning(ctx, env, c)
				if len(list) == 0 {
					return failed
				}
				i := slices.IndexFunc(list, func(r *runningSetting) bool { return r.Name == args[0] })
				if i < 0 {
					return fmt.Errorf("unknown setting %s: the nodes run an older release", args[0])
				}
				return errors.Join(env.Print.Result(list[i], "%s", list[i].Value), failed)
			})
		},
	}
}

func setCommand(env *cli.Env) *cobra.Command {
	var node string
	cmd := &cobra.Command{
		Use: "set NAME VALUE", Short: "Change a setting",
		Long: `Change a setting without a restart, on both nodes or on the node in --node. Without --node, the value
replaces those that were set for individual nodes. The value survives restarts. To return to the configured value, use
lockstep settings unset.`,
		Example: "  lockstep settings set log.level debug --node a\n  lockstep settings set limits.message-bytes 1MiB\n" +
			"  lockstep settings set min-in-sync 2",
		Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			return changeRunning(cmd.Context(), env, args[0],
				&pb.ChangeSettingsRequest{Set: map[string]string{args[0]: args[1]}, Node: node})
		},
	}
	cmd.Flags().StringVar(&node, "node", "", "name or UUID of the node, for a node setting; default: both")
	return cmd
}

func unsetCommand(env *cli.Env) *cobra.Command {
	var node string
	cmd := &cobra.Command{
		Use: "unset NAME", Short: "Restore the configured value of a setting",
		Long: `Remove a value set by lockstep settings set, on both nodes or on the node in --node. The configuration of each
node applies again within a second. With --node, a value that was set on both nodes remains set on the other node.`,
		Example: "  lockstep settings unset log.level",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return changeRunning(cmd.Context(), env, args[0],
				&pb.ChangeSettingsRequest{Unset: []string{args[0]}, Node: node})
		},
	}
	cmd.Flags().StringVar(&node, "node", "", "name or UUID of the node, for a node setting; default: both")
	return cmd
}

func findRunning(name string) (config.Running, error) {
	r, err := config.FindRunning(name)
	if err != nil {
		return r, cli.Usage("%s", strings.TrimPrefix(err.Error(), config.ErrInvalid.Error()+": "))
	}
	return r, nil
}

func changeRunning(ctx context.Context, env *cli.Env, name string, req *pb.ChangeSettingsRequest) error {
	r, err := findRunning(name)
	if err != nil {
		return err
	}
	if r.Scope == config.ScopePair && req.GetNode() != "" {
		return cli.Usage("%s is a setting of the pair: omit --node", name)
	}
	return env.WithPairTimeout(ctx, func(ctx context.Context, c *client.Client) error {
		change := admin.New(c).ChangeRunningSettings
		if name == "min-in-sync" {
			change = func(ctx context.Context, req *pb.ChangeSettingsRequest) ([]*pb.RunningSetting, error) {
				return changeAnywhere(ctx, env, c, req)
			}
		}
		now, err := change(ctx, req)
		if err != nil {
			return err
		}
		for _, s := range now {
			if s.GetName() != name {
				continue
			}
			err := env.Print.Object(map[string]any{
				"name": name, "active_value": s.GetValue(),
				"configured": s.GetConfigured(), "kept_by": s.GetScope(),
			})
			if err != nil {
				return err
			}
		}
		switch text, set := req.GetSet()[name]; {
		case !set && req.GetNode() != "":
			return env.Print.Sentence("%s is reset to the configured value on node %s", name, req.GetNode())
		case !set:
			return env.Print.Sentence("%s is reset to the configured value", name)
		case req.GetNode() != "":
			return env.Print.Sentence("%s is %s on node %s", name, text, req.GetNode())
		default:
			return env.Print.Sentence("%s is %s on both nodes", name, text)
		}
	})
}

// changeAnywhere sends the request to one node after the other until one responds: min-in-sync can be changed while no
// node is active.
func changeAnywhere(
	ctx context.Context, env *cli.Env, c *client.Client, req *pb.ChangeSettingsRequest,
) (now []*pb.RunningSetting, err error) {
	nodes, err := env.Nodes(c)
	for _, n := range nodes {
		if now, err = n.ChangeRunningSettings(ctx, req); err == nil || !errors.Is(err, client.ErrUnavailable) {
			return now, err
		}
	}
	return now, err
}
