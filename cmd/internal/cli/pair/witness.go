// SPDX-License-Identifier: Apache-2.0

package pair

import (
	"context"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"go.uber.org/zap"

	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	"github.com/lockstep-mq/lockstep/cmd/internal/cli/serve"
	"github.com/lockstep-mq/lockstep/failover/coordinator/raft"
	"github.com/lockstep-mq/lockstep/proto/tlsfiles"
	"github.com/lockstep-mq/lockstep/server/config"
)

// raftFlags contains the flags of a voter, and of commands that connect to voters.
type raftFlags struct {
	voters        []string
	ca, cert, key string
	names         []string // accepted names in certificates; only for the witness
	secured       bool     // the nodes have reported that their voters use TLS
}

func (f *raftFlags) register(cmd *cobra.Command) {
	cmd.Flags().StringSliceVar(&f.voters, "voters", nil,
		"voter addresses, comma-separated; default: as reported by the nodes in --addr")
	cmd.Flags().StringVar(&f.ca, "raft-ca", "", "CA certificates for verifying the voters; enables TLS for this command")
	cmd.Flags().StringVar(&f.cert, "raft-cert", "", "client certificate file, with a name that the voters accept")
	cmd.Flags().StringVar(&f.key, "raft-key", "", "key file of the certificate")
	cmd.MarkFlagsRequiredTogether("raft-ca", "raft-cert", "raft-key")
}

// tls loads the TLS files. It returns nil if TLS is disabled. onReload is called with the result of each reload.
func (f *raftFlags) tls(onReload func(error)) (secure *raft.TLS, source *tlsfiles.Source, err error) {
	if f.ca == "" {
		return nil, nil, nil
	}
	source, err = tlsfiles.Open(tlsfiles.Options{
		Files: tlsfiles.Files{CA: f.ca, Cert: f.cert, Key: f.key}, OnChange: onReload,
	})
	if err != nil {
		return nil, nil, cli.Usage("--raft-ca, --raft-cert, --raft-key: %v", err)
	}
	return &raft.TLS{
		Receive: source.Receive, Dial: source.Dial, Names: f.names, CA: f.ca, Cert: f.cert, Key: f.key,
	}, source, nil
}

const (
	expiryWarning  = 14 * 24 * time.Hour
	expiryInterval = 12 * time.Hour
)

// watchExpiry logs certificates that have expired or expire soon, until ctx ends. In addition, the nodes report the
// certificate that the witness presents to them.
func watchExpiry(ctx context.Context, source *tlsfiles.Source, logger *zap.Logger) {
	ticker := time.NewTicker(expiryInterval)
	defer ticker.Stop()
	for {
		source.Check()
		for _, c := range source.Certificates() {
			left := time.Until(c.Ends)
			fields := []zap.Field{zap.String("file", c.File), zap.String("subject", c.Subject), zap.Time("ends", c.Ends)}
			switch {
			case left <= 0:
				logger.Error("certificate expired: new connections with it are refused; replace the file", fields...)
			case left < expiryWarning:
				logger.Warn("certificate expires within 14 days: replace the file, it is reloaded automatically", fields...)
			}
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
	}
}

func responsesIn(logger *zap.Logger) func(error) {
	return func(err error) {
		if err == nil {
			logger.Info("certificates reloaded")
			return
		}
		logger.Error("certificates could not be reloaded; the previous ones stay in use",
			zap.Error(err))
	}
}

// WitnessCommand returns the `lockstep witness` command.
func WitnessCommand(env *cli.Env) *cobra.Command {
	var f raftFlags
	var dir, listen, advertise, level, format string
	var insecure bool
	cmd := &cobra.Command{
		Use: "witness", GroupID: "run",
		Short: "Run the witness of a pair without etcd",
		Long: `Run the witness of a pair with coordinator.type: raft, until SIGINT or SIGTERM. The two nodes and the
witness store the cluster record, and two of the three are enough to change it. The witness stores no messages. Run
it on a third machine, so that the record remains available after the loss of any one machine.`,
		Example: `  lockstep witness --listen 10.0.0.3:7430 --voters 10.0.0.1:7430,10.0.0.2:7430,10.0.0.3:7430 --data-dir /var/lib/lockstep-witness`,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			logger, _, err := serve.NewLogger(env.Stderr, level, format)
			if err != nil {
				return cli.Usage("%w", err)
			}
			if f.ca == "" && !insecure && !config.LocalOnly(listen) {
				return cli.Usage("--listen %s is reachable from other machines, and TLS is not configured: any client can "+
					"change the cluster record. Set --raft-ca, --raft-cert and --raft-key (to create certificates, use lockstep "+
					"cert init), or --insecure if the network is trusted", listen)
			}
			secure, source, err := f.tls(responsesIn(logger))
			if err != nil {
				return err
			}
			defer serve.OnHangup(cmd.Context(), logger, func() {
				if source != nil {
					_ = source.Reload() // errors are reported by the callback
				}
			})()
			if source != nil {
				ctx, cancel := context.WithCancel(cmd.Context())
				var watching sync.WaitGroup
				watching.Go(func() { watchExpiry(ctx, source, logger) })
				defer watching.Wait()
				defer cancel()
			}
			if f.ca == "" && !config.LocalOnly(listen) {
				logger.Warn("voter connections are not encrypted (--insecure): any client that reaches the port can " +
					"change the cluster record")
			}
			return raft.RunWitness(cmd.Context(), raft.Options{
				Dir: dir, Listen: listen, Advertise: advertise, Voters: f.voters, TLS: secure, Logger: logger,
			}, func(v *raft.Voter) {
				// Ignore write errors: the witness works without a reader of its output (a closed pipe).
				_ = env.Print.Sentence("lockstep %s, witness %s, on %s", env.Version, v.ID(), v.ListenAddress())
				_ = env.Print.Object(map[string]string{"id": v.ID(), "address": v.ListenAddress()})
			})
		},
	}
	f.register(cmd)
	_ = cmd.MarkFlagRequired("voters")
	cmd.Flags().Lookup("voters").Usage = "addresses of all three voters, comma-separated"
	cmd.Flags().Lookup("raft-ca").Usage = "CA certificates for verifying the other voters; enables TLS between voters"
	cmd.Flags().Lookup("raft-cert").Usage = "certificate file, valid for servers and clients"
	cmd.Flags().StringSliceVar(&f.names, "raft-names", nil, "accepted names (DNS, IP or URI) in the certificates of "+
		"other voters and of operators; default: the hosts of the voters' addresses")
	cmd.Flags().BoolVar(&insecure, "insecure", false,
		"allow listening without TLS on an address that other machines can reach")
	cmd.Flags().StringVar(&listen, "listen", "127.0.0.1:7430", "listen address for the other voters, host:port")
	cmd.Flags().StringVar(&advertise, "advertise", "",
		"address at which the other voters reach this one, as in --voters; default: --listen")
	cmd.Flags().StringVar(&dir, "data-dir", "lockstep-witness", "data directory for the vote and the cluster record")
	cmd.Flags().StringVar(&level, "log-level", "info", "minimum log level: debug, info, warn or error")
	cmd.Flags().StringVar(&format, "log-format", "text", "log format on stderr: text or json")
	return cmd
}
