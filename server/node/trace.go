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

// startTracing starts the export of spans, if the settings or the environment enable it. It must be called before
// the node's port and the connections to the other node are created.
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

// tracer returns the tracer for replication. It returns nil without tracing.
func (n *node) tracer() replication.Tracer {
	if n.tracing == nil {
		return nil // an interface that is nil, not one with a nil pointer
	}
	return n.tracing
}
