// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"net"
	"slices"

	"go.uber.org/zap"
	"google.golang.org/grpc"

	"github.com/lockstep-mq/lockstep/failover"
	"github.com/lockstep-mq/lockstep/replication"
	"github.com/lockstep-mq/lockstep/server/config"
	"github.com/lockstep-mq/lockstep/server/gate"
	"github.com/lockstep-mq/lockstep/store/vfs"
)

// Environment is what a simulation gives a node in place of the real network, coordinator and machine, so that all the
// rest of a node can be run as it is. What is not set is real.
type Environment struct {
	// Listen binds the ports of the node: those for gRPC, AMQP, the console, the metrics and the voter.
	Listen func(ctx context.Context, address string) (net.Listener, error)
	// Dial connects to the other node, to a voter, to a collector of traces, or to an issuer of tokens. An error that is
	// syscall.ECONNREFUSED says that the process of the other node is gone.
	Dial func(ctx context.Context, address string) (net.Conn, error)
	// Coordinator connects to the pair's coordinator, in place of the one that coordinator.type names. The node closes
	// it.
	Coordinator func(self failover.NodeInfo) (failover.Coordinator, error)
	// BootID names the boot of the machine (INV-6).
	BootID string
	// Authenticators are asked who calls before the node's own ones.
	Authenticators []gate.Authenticator
	// Inside is given the way by which the console and the port for AMQP call the node's services; it is there while the
	// node serves.
	Inside func(grpc.ClientConnInterface)
}

func (s Environment) listen(ctx context.Context, address string) (net.Listener, error) {
	if s.Listen != nil {
		return s.Listen(ctx, address)
	}
	return listen(ctx, address)
}

// dialer is the way to the active.
func (s Environment) dialer(options []grpc.DialOption) replication.Dialer {
	if s.Dial != nil {
		return replication.NewDialerOver(s.Dial, options...)
	}
	return replication.NewDialer(options...)
}

// dialOptions are those of all other connections to the other node.
func (s Environment) dialOptions(options []grpc.DialOption) []grpc.DialOption {
	if s.Dial == nil {
		return options
	}
	return append(slices.Clip(options), grpc.WithContextDialer(s.Dial))
}

func (s Environment) coordinator(
	cfg config.Config, fs vfs.FS, id failover.Identity, self failover.NodeInfo, kept *secrets,
	logger *zap.Logger,
) (failover.Coordinator, error) {
	if s.Coordinator != nil {
		return s.Coordinator(self)
	}
	return openCoordinator(cfg, fs, id, self, kept, s, logger)
}
