// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"fmt"
	"slices"

	"go.uber.org/zap"

	"github.com/lockstep-mq/lockstep/replication"
	"github.com/lockstep-mq/lockstep/server/config"
	"github.com/lockstep-mq/lockstep/server/observe/tracing"
)

// startTracing starts to export spans, if the settings or the environment configure it. It must precede the creation of
// the node's port and its connections to the other node.
func (n *node) startTracing(ctx context.Context) (stop func(), err error) {
	c := n.cfg.Tracing
	if !tracing.Enabled(c.Endpoint) {
		return func() {}, nil
	}
	n.tracing, err = tracing.Start(ctx, tracing.Options{
		Endpoint: c.Endpoint, Sample: float64(c.Sample), SampleSet: c.Sample != config.DefaultSample,
		Headers: c.Headers, Insecure: c.Insecure, CAFile: c.CA, Dial: n.environment.Dial,
		NodeName: n.cfg.Node.Name, NodeID: n.store.Identity().NodeID.String(), Version: n.version,
		Logger: n.log.Named("tracing"),
	})
	if err != nil {
		return nil, fmt.Errorf("%w: %w", config.ErrInvalid, err)
	}
	n.serverOptions = append(slices.Clip(n.serverOptions), n.tracing.ServerOption())
	n.dialOptions = append(slices.Clip(n.dialOptions), n.tracing.DialOption())
	n.log.Info("tracing enabled", zap.String("collector", c.Endpoint), zap.Stringer("sample", c.Sample))
	return func() { n.tracing.Stop(ctx) }, nil
}

// tracer returns the tracer of replication, or nil if tracing is off.
func (n *node) tracer() replication.Tracer {
	if n.tracing == nil {
		return nil // not an interface with a nil pointer
	}
	return n.tracing
}
