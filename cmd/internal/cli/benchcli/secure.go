// SPDX-License-Identifier: Apache-2.0

package benchcli

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/client/admin"
	"github.com/lockstep-mq/lockstep/cmd/internal/bench"
	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	"github.com/lockstep-mq/lockstep/cmd/internal/cli/cert"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/proto/tlsfiles"
	"github.com/lockstep-mq/lockstep/test/harness"
)

const principal = "bench"

const plainNote = "without TLS and rules"

func secured(dir string, o *harness.Options, c *client.Options) error {
	dir = filepath.Join(dir, "certs")
	if err := os.Mkdir(dir, 0o700); err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	files, err := cert.Make(dir, []string{"127.0.0.1"}, principal)
	if err != nil {
		return err
	}
	o.Settings["tls.ca"], o.Settings["tls.cert"], o.Settings["tls.key"] = files.CA, files.NodeCert, files.NodeKey
	c.TLSFiles = client.TLSFiles{CA: files.CA, Cert: files.ClientCert, Key: files.ClientKey}
	source, err := tlsfiles.Open(tlsfiles.Options{
		Files: tlsfiles.Files{CA: files.CA, Cert: files.ClientCert, Key: files.ClientKey},
	})
	if err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	o.Credentials = source.Credentials(nil)
	return nil
}

// withPlain measures two pairs, or two standalone nodes, alternately: one with TLS and access rules, and one without
// both. It prints a comparison.
func withPlain(ctx context.Context, env *cli.Env, cmd *cobra.Command, f Flags, p Params,
	measure func(t bench.Target, sizeBytes int) (bench.Result, error),
) error {
	if cmd.Flags().Changed("addr") && !f.Pair && !f.Standalone {
		return cli.Usage("--tls starts its own nodes, with and without TLS: omit --addr")
	}
	plain := f
	plain.TLS = false
	return WithTarget(ctx, env, cmd, plain, p, func(without bench.Target) error {
		return WithTarget(ctx, env, cmd, f, p, func(with bench.Target) error {
			with.Setup += ", TLS, rules"
			if err := rule(ctx, with.Client); err != nil {
				return err
			}
			for _, size := range p.Sizes {
				if err := alternate(env, f.Rounds, without, with, func(t bench.Target) (bench.Result, error) {
					return measure(t, size)
				}); err != nil {
					return err
				}
			}
			return nil
		})
	})
}

// rule grants the measuring client its rights. Because it is the first rule, all other clients are denied.
func rule(ctx context.Context, c *client.Client) error {
	_, err := admin.New(c).Grant(ctx, &pb.AccessRule{
		Principal: principal, Queue: "bench-*", Rights: []pb.AccessRight{
			pb.AccessRight_ACCESS_RIGHT_PUBLISH, pb.AccessRight_ACCESS_RIGHT_CONSUME,
			pb.AccessRight_ACCESS_RIGHT_BROWSE, pb.AccessRight_ACCESS_RIGHT_MANAGE,
			pb.AccessRight_ACCESS_RIGHT_OPERATE,
		},
	}, false)
	return err
}

// alternate measures both targets in each round. The order alternates between rounds.
func alternate(env *cli.Env, rounds int, without, with bench.Target,
	measure func(bench.Target) (bench.Result, error),
) error {
	results := make(map[bool][]bench.Result)
	var all []bench.Result
	for round := range rounds {
		for _, secure := range []bool{round%2 == 1, round%2 == 0} {
			t := without
			if secure {
				t = with
			}
			r, err := measure(t)
			if err != nil {
				return err
			}
			r.Round = round + 1
			results[secure], all = append(results[secure], r), append(all, r)
			if err := env.Print.Object(r); err != nil {
				return err
			}
		}
	}
	plain, secure := bench.Median(results[false]), bench.Median(results[true])
	secure.Ratio, secure.Comment = secure.Rate/plain.Rate, plainNote
	for _, r := range []bench.Result{plain, secure} {
		if err := env.Print.Object(r); err != nil {
			return err
		}
		all = append(all, r)
	}
	if err := PrintResults(env, all); err != nil {
		return err
	}
	return env.Print.Sentence("with TLS and rules: %.2f × the rate without", secure.Ratio)
}
