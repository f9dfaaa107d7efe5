// SPDX-License-Identifier: Apache-2.0

package site

import (
	"context"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/lockstep-mq/lockstep/client/admin"
	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	"github.com/lockstep-mq/lockstep/cmd/internal/cli/serve"
	"github.com/lockstep-mq/lockstep/cmd/internal/output"
	"github.com/lockstep-mq/lockstep/cmd/internal/progress"
	"github.com/lockstep-mq/lockstep/server/config"
	"github.com/lockstep-mq/lockstep/server/ops/site"
)

func drillCommand(env *cli.Env) *cobra.Command {
	var dir, listen string
	cmd := &cobra.Command{
		Use: "drill --data-dir DIR", Short: "Make a writable copy of a replica for a test",
		Long: `Copy the active node of the pair in --addr, usually a replica, to an empty data directory on this machine. A
standalone node serves the copy, to test how applications start at a site. Neither site is changed, and no site or
pair accepts the copy.

The copy contains all queues and messages. Its schedules and jobs run while it is served. Do not give its address to
production applications.

With --listen, the command serves the copy until it is interrupted, without TLS. Without --listen, it prints the
command that serves the copy. To end the drill, delete the directory.`,
		Example: `  lockstep site drill --addr west-a:7420,west-b:7420 --data-dir ./drill
  lockstep site drill --addr west-a:7420 --data-dir ./drill --listen 127.0.0.1:7600`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if dir == "" {
				return cli.Usage("--data-dir is required: an empty directory for the copy")
			}
			var c config.Config
			var err error
			if listen != "" {
				if c, err = drillConfig(dir, listen); err != nil {
					return err
				}
			}
			if err := drill(cmd.Context(), env, dir, listen == ""); err != nil || listen == "" {
				return err
			}
			return serve.Foreground(cmd.Context(), env, c, func(address string) {
				// Write errors are ignored: the node works without a reader of the output.
				_ = env.Print.Sentence("the copy is served at %s until this command is interrupted", address)
				_ = env.Print.Object(map[string]string{"address": address})
			})
		},
	}
	cmd.Flags().StringVar(&dir, "data-dir", "", "new data directory; must be empty or not exist")
	_ = cmd.MarkFlagRequired("data-dir")
	cmd.Flags().StringVar(&listen, "listen", "", "loopback address, host:port, at which the copy is served")
	return cmd
}

// drillConfig returns the settings of a standalone node. Settings of other nodes, such as backup.path, do not
// apply.
func drillConfig(dir, listen string) (config.Config, error) {
	host, _, err := net.SplitHostPort(listen)
	if err != nil {
		return config.Config{}, cli.Usage("--listen %q: must be host:port", listen)
	}
	if ip := net.ParseIP(host); host != "localhost" && (ip == nil || !ip.IsLoopback()) {
		return config.Config{}, cli.Usage("--listen %q: must be a loopback address; use `lockstep serve` for others", listen)
	}
	c := config.Default()
	c.Data.Dir, c.Listen, c.Coordinator.Type, c.Node.Name = dir, listen, config.CoordinatorNone, "drill"
	return c, nil
}

// drilled is the output of lockstep site drill.
type drilled struct {
	DataDir  string          `json:"data_dir"`
	NodeID   string          `json:"node_id"`
	StoreID  string          `json:"store_id"`
	Site     string          `json:"site,omitempty"` // name of the copied site
	Role     string          `json:"role"`           // role of the copied site
	Lineage  string          `json:"lineage"`        // lineage of the copy
	Position output.Position `json:"position"`       // position of the copy in the log of the copied site
	Messages uint64          `json:"messages"`
	Bytes    uint64          `json:"bytes"`
	Serve    []string        `json:"serve,omitempty"` // command that serves the copy; empty if this command serves it
}

// drill copies the active node to dir. If hint is set, it prints the command that serves the copy.
func drill(ctx context.Context, env *cli.Env, dir string, hint bool) error {
	start := time.Now()
	var r site.Seeded
	err := env.OnActive(ctx, func(ctx context.Context, n *admin.Node) error {
		return env.WithProgress(ctx, dir, func(show func(progress.Step)) (err error) {
			r, err = site.Drill(ctx, site.DrillOptions{
				Pull: n.PullSnapshot, Dir: dir, Progress: cli.ShowCheckpoint(show),
			})
			return err
		})
	})
	if err != nil {
		return err
	}
	state := newSiteState(r.Primary, true)
	j := drilled{
		DataDir: dir, NodeID: r.NodeID.String(), StoreID: r.StoreID.String(), Site: state.Name, Role: state.Role,
		Lineage: r.Lineage.String(), Position: output.NewPosition(r.Upstream), Messages: r.Messages, Bytes: r.DataBytes,
	}
	if hint {
		j.Serve = []string{"lockstep", "serve", "--standalone", "--data-dir", dir, "--listen", "127.0.0.1:7600"}
	}
	if err := env.Print.Object(j); err != nil {
		return err
	}
	from := "the pair"
	if j.Site != "" {
		from = fmt.Sprintf("%s (%s)", j.Site, j.Role)
	}
	err = env.Print.Sentence("%s: copy of %s up to LSN %d, %s, %s, in %v; it belongs to no pair and no site", dir, from,
		r.Upstream.LSN, output.Plural(j.Messages, "message"), output.Bytes(j.Bytes),
		time.Since(start).Round(time.Millisecond))
	if err != nil || !hint {
		return err
	}
	return env.Print.Sentence("to serve it: %s", strings.Join(j.Serve, " "))
}
