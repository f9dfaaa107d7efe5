// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"sync"
	"syscall"

	"github.com/lockstep-mq/lockstep/server/config"
	"github.com/lockstep-mq/lockstep/server/node"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// NewLogger returns a logger that writes lines of text or, with the format "json", JSON objects. setLevel changes the
// level of the logger, and ignores an invalid level. NewLogger returns an error for an invalid level.
func NewLogger(w io.Writer, level, format string) (logger *zap.Logger, setLevel func(string), err error) {
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

// LimitMemory keeps the memory of this process close to the budget until stop is called or ctx ends.
func LimitMemory(ctx context.Context, budget config.Size) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var limiter sync.WaitGroup
	limiter.Go(func() { node.LimitMemory(ctx, budget.Bytes()) })
	return func() {
		cancel()
		limiter.Wait()
	}
}

// OnHangup calls reload for each SIGHUP until stop is called or ctx ends. The signal no longer terminates the process:
// operators use it to reload certificates, keys and secrets, and a closing terminal sends it.
func OnHangup(ctx context.Context, log *zap.Logger, reload func()) (stop func()) {
	hangups := make(chan os.Signal, 1)
	signal.Notify(hangups, syscall.SIGHUP)
	ctx, cancel := context.WithCancel(ctx)
	var listening sync.WaitGroup
	listening.Go(func() {
		for {
			select {
			case <-hangups:
				log.Info("SIGHUP: reloading certificates, keys and secrets. Settings are read " +
					"at the start: to restart both nodes without downtime, use lockstep restart")
				reload()
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
