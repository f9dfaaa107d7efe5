// SPDX-License-Identifier: Apache-2.0

package site

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	"github.com/lockstep-mq/lockstep/cmd/internal/output"
	"github.com/lockstep-mq/lockstep/cmd/internal/progress"
	"github.com/lockstep-mq/lockstep/proto/tlsfiles"
	"github.com/lockstep-mq/lockstep/server/auth/secretfile"
	"github.com/lockstep-mq/lockstep/server/config"
	"github.com/lockstep-mq/lockstep/server/ops/site"
)

func seedCommand(env *cli.Env) *cobra.Command {
	var file string
	var from []string
	cmd := &cobra.Command{
		Use: "seed", Short: "Create the data directory of a replica",
		Long: `Copy the primary to an empty data directory on this machine. If the copied pair has no role, it becomes the
primary. The node that starts with the directory is the first node of a replica site. The second node of that site
starts with an empty directory. Run the command as the user of the node, before the node is started.

The command reads the settings site, tls, insecure, data.dir and wal.segment-bytes from flags, environment variables
and --config. Without --from, it uses the addresses in site.remote.

After an error, repeat the command. Start the node within 10 minutes: later, the primary may have deleted the log
that the replica requires.`,
		Example: `  lockstep site seed --config /etc/lockstep/node.yaml
  lockstep site seed --from east-a:7420,east-b:7420 --config /etc/lockstep/node.yaml
  lockstep site seed --from east-a:7420 --data-dir ./data --site-name west --site-token-file token --tls-ca ca.pem`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := config.LoadSite(file, env.Environ, cmd.Flags(), from)
			switch {
			case err != nil:
				return fmt.Errorf("settings of the replica: %w", err)
			case len(c.Site.Remote) == 0:
				return cli.Usage("missing --from: addresses of the primary")
			}
			return seed(cmd.Context(), env, &c)
		},
	}
	cmd.Flags().StringVar(&file, "config", "", "configuration file of the node")
	cmd.Flags().StringSliceVar(&from, "from", nil, "addresses of the nodes of the primary, host:port")
	config.RegisterSiteFlags(cmd.Flags())
	return cmd
}

// seeded is the output of lockstep site seed.
type seeded struct {
	DataDir  string          `json:"data_dir"`
	NodeID   string          `json:"node_id"`
	StoreID  string          `json:"store_id"`
	Primary  string          `json:"primary"`
	Lineage  string          `json:"lineage"`
	Epoch    uint64          `json:"epoch"`
	Upstream output.Position `json:"upstream"`
	Messages uint64          `json:"messages"`
	Bytes    uint64          `json:"bytes"`
}

func seed(ctx context.Context, env *cli.Env, c *config.Config) error {
	options, err := siteDialOptions(c)
	if err != nil {
		return err
	}
	o := site.SeedOptions{
		Name: c.Site.Name, From: c.Site.Remote, Dial: options, Dir: c.Data.Dir,
		SegmentBytes: c.WAL.SegmentBytes.Bytes(),
	}
	start := time.Now()
	var r site.Seeded
	err = env.WithProgress(ctx, c.Data.Dir, func(show func(progress.Step)) (err error) {
		o.Progress = cli.ShowCheckpoint(show)
		r, err = site.Seed(ctx, o)
		return err
	})
	if err != nil {
		return err
	}
	j := seeded{
		DataDir: c.Data.Dir, NodeID: r.NodeID.String(), StoreID: r.StoreID.String(), Primary: r.Primary.GetName(),
		Lineage: r.Primary.GetLineage(), Epoch: r.Primary.GetEpoch(), Upstream: output.NewPosition(r.Upstream),
		Messages: r.Messages, Bytes: r.DataBytes,
	}
	if err := env.Print.Object(j); err != nil {
		return err
	}
	err = env.Print.Sentence("%s: %s of %s up to LSN %d, %s, in %v", j.DataDir, output.Plural(j.Messages, "message"),
		j.Primary, r.Upstream.LSN, output.Bytes(j.Bytes), time.Since(start).Round(time.Millisecond))
	if err != nil {
		return err
	}
	return env.Print.Sentence("start the node within 10 minutes; it becomes a replica of %s, epoch %d", j.Primary, j.Epoch)
}

// siteDialOptions returns the options for connections to the other site, as a node uses them.
func siteDialOptions(c *config.Config) ([]grpc.DialOption, error) {
	var files *tlsfiles.Source
	var secrets *secretfile.File
	var err error
	if c.SiteTLS() {
		files, err = tlsfiles.Open(tlsfiles.Options{Files: c.SiteFiles(), MinVersion: c.TLS.Version()})
		if err != nil {
			return nil, fmt.Errorf("certificates for the other site: %w", err)
		}
	}
	if c.Site.TokenFile != "" {
		if secrets, err = secretfile.Open(c.Site.TokenFile, nil); err != nil {
			return nil, fmt.Errorf("site.token-file: %w", err)
		}
	}
	return site.DialOptions(files, secrets), nil
}
