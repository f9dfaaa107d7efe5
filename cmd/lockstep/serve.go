package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"syscall"

	"github.com/spf13/cobra"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/lockstep-mq/lockstep/server/config"
	"github.com/lockstep-mq/lockstep/server/node"
)

func (a *app) serveCommand() *cobra.Command {
	var file string
	cmd := &cobra.Command{
		Use: "serve", GroupID: "run",
		Short: "Run one node: of a pair, or with --standalone alone",
		Long: `Run one node until SIGINT or SIGTERM. A pair is two nodes with the same etcd and the same coordinator.etcd.prefix.

Settings come from the flags, the environment (log.keep-bytes is LOCKSTEP_LOG_KEEP_BYTES) and the file, in this order;
a setting that does not exist is an error.`,
		Example: `  lockstep serve --config /etc/lockstep/node.yaml
  lockstep serve --data-dir /var/lib/lockstep --listen 10.0.0.1:7420 --coordinator-etcd-endpoints etcd-1:2379,etcd-2:2379
  lockstep serve --standalone --data-dir ./data --listen 127.0.0.1:7420`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			// This one is the command line's own, for the other commands.
			environ := slices.DeleteFunc(slices.Clone(a.environ),
				func(s string) bool { return strings.HasPrefix(s, envAddr+"=") })
			cfg, err := config.Load(file, environ, cmd.Flags())
			if err != nil {
				return err
			}
			logger, level, err := newLogger(a.stderr, cfg.Log.Level, cfg.Log.Format)
			if err != nil {
				return err
			}
			program, err := os.Executable() // now: a new version may take its place while this one runs
			if err != nil {
				return fmt.Errorf("find this program, to restart it when that is asked for: %w", err)
			}
			defer ignoreHangup(cmd.Context(), logger)()
			defer limitMemory(cmd.Context(), cfg.Memory.Budget)()
			address := ""
			err = node.Run(cmd.Context(), cfg, logger,
				node.Options{
					Version: versionName(), CanRestart: canRestart, SetLogLevel: level,
					OnReady: func(r node.Ready) {
						address = r.Address
						// Without a reader (a closed pipe) the node serves all the same.
						_ = a.print.Sentence("lockstep %s serves on %s", versionName(), r.Address)
						_ = a.print.Object(map[string]string{
							"address": r.Address, "advertise": r.Advertise,
							"node_id": r.NodeID,
						})
					},
				})
			if errors.Is(err, node.ErrRestart) {
				logger.Info("beginning anew", zap.String("program", program))
				return beginAnew(program, address)
			}
			return err
		},
	}
	cmd.Flags().StringVar(&file, "config", "", "YAML file with settings")
	config.RegisterFlags(cmd.Flags())
	return cmd
}

// newLogger makes the logger of a node: text for people, or one JSON object per line; and what changes its level.
func newLogger(w io.Writer, level, format string) (logger *zap.Logger, setLevel func(string), err error) {
	lowest, err := zap.ParseAtomicLevel(level)
	if err != nil {
		return nil, nil, fmt.Errorf("log.level: %w", err)
	}
	setLevel = func(level string) {
		if l, err := zapcore.ParseLevel(level); err == nil {
			lowest.SetLevel(l)
		}
	}
	c := zap.NewProductionEncoderConfig()
	c.EncodeTime = zapcore.ISO8601TimeEncoder
	encoder := zapcore.NewJSONEncoder(c)
	if format != "json" {
		c.EncodeLevel = zapcore.CapitalLevelEncoder
		c.ConsoleSeparator = "  "
		encoder = zapcore.NewConsoleEncoder(c)
	}
	return zap.New(zapcore.NewCore(encoder, zapcore.Lock(zapcore.AddSync(w)), lowest)), setLevel, nil
}

// limitMemory keeps this process close to its memory budget until stop is called.
func limitMemory(ctx context.Context, budget config.Size) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var limiter sync.WaitGroup
	limiter.Go(func() { node.LimitMemory(ctx, budget.Bytes()) })
	return func() {
		cancel()
		limiter.Wait()
	}
}

// ignoreHangup keeps SIGHUP from ending this process until stop is called: supervisors and closing terminals send it,
// and some operators, who expect settings to be read again.
func ignoreHangup(ctx context.Context, log *zap.Logger) (stop func()) {
	hangups := make(chan os.Signal, 1)
	signal.Notify(hangups, syscall.SIGHUP)
	ctx, cancel := context.WithCancel(ctx)
	var listening sync.WaitGroup
	listening.Go(func() {
		for {
			select {
			case <-hangups:
				log.Info("SIGHUP: this process goes on. Settings are read at the start: lockstep restart restarts " +
					"both nodes without a pause")
			case <-ctx.Done():
				return
			}
		}
	})
	return func() {
		signal.Stop(hangups)
		cancel()
		listening.Wait()
	}
}
