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
	"github.com/lockstep-mq/lockstep/server/auth"
	"github.com/lockstep-mq/lockstep/server/config"
	"github.com/lockstep-mq/lockstep/store/vfs"
)

// Environment replaces the network, the coordinator and the machine in a simulation. A field that is unset
// selects the real one.
type Environment struct {
	// Listen binds the ports of the node for gRPC, AMQP, the console, the metrics and the voter.
	Listen func(ctx context.Context, address string) (net.Listener, error)
	// Dial connects to the other node, a node of another pair or site, a voter, the etcd of a fleet, a trace collector
	// or a token issuer. The error syscall.ECONNREFUSED means that no process listens at the address.
	Dial func(ctx context.Context, address string) (net.Conn, error)
	// Coordinator connects to the coordinator of the pair. It replaces the coordinator that coordinator.type
	// selects. The node closes the connection.
	Coordinator func(self failover.NodeInfo) (failover.Coordinator, error)
	// BootID identifies the boot of the machine (INV-6).
	BootID string
	// Authenticators are called before the authenticators of the node.
	Authenticators []auth.Authenticator
	// InProcess is called with the connection through which the console and the AMQP port call the node's services,
	// after all services are registered. The connection is valid while the node serves.
	InProcess func(grpc.ClientConnInterface)
	// MoveStep is called before each step of a move of queues that this node performs. If it returns an error, the step
	// fails.
	MoveStep func(ctx context.Context, step string) error
}

func (s Environment) listen(ctx context.Context, address string) (net.Listener, error) {
	if s.Listen != nil {
		return s.Listen(ctx, address)
	}
	return listen(ctx, address)
}

func (s Environment) dialer(options []grpc.DialOption) replication.Dialer {
	if s.Dial != nil {
		return replication.NewDialerOver(s.Dial, options...)
	}
	return replication.NewDialer(options...)
}

// dialOptions returns the options with the dialer of the environment. They are for all gRPC connections except those
// of replication, which dialer creates.
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
