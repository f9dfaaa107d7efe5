package node

import (
	"context"
	"slices"
	"time"

	"go.uber.org/zap"
	"google.golang.org/grpc"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"

	"github.com/lockstep-mq/lockstep/failover"
	"github.com/lockstep-mq/lockstep/proto/codec"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/replication"
	"github.com/lockstep-mq/lockstep/server"
	"github.com/lockstep-mq/lockstep/server/admin"
	"github.com/lockstep-mq/lockstep/server/config"
	"github.com/lockstep-mq/lockstep/server/maintenance/rpc"
	"github.com/lockstep-mq/lockstep/server/queue"
)

const (
	// messageSlackBytes is what a gRPC request has around the messages of a transaction.
	messageSlackBytes = 1 << 20
	// streamWindowBytes and connectionWindowBytes are what a client may send before the node has read it.
	streamWindowBytes     = 1 << 20
	connectionWindowBytes = 4 << 20
	// A client that answers no ping for so long is gone, and its messages go to others.
	keepaliveTime    = 5 * time.Second
	keepaliveTimeout = 5 * time.Second
	// A connection has so long to say that it is one: what connects and says nothing holds a descriptor.
	handshakeTimeout = 5 * time.Second
	// keepaliveMin is how often clients may ping.
	keepaliveMin = time.Second
)

// newServer makes the gRPC server with all services of the node.
func (n *node) newServer() *grpc.Server {
	s := grpc.NewServer(slices.Concat(codec.MarkingServerOptions(), []grpc.ServerOption{
		grpc.MaxRecvMsgSize(int(n.cfg.Limits.TransactionBytes) + messageSlackBytes),
		grpc.InitialWindowSize(streamWindowBytes), grpc.InitialConnWindowSize(connectionWindowBytes),
		grpc.ConnectionTimeout(handshakeTimeout),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: keepaliveTime, Timeout: keepaliveTimeout}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: keepaliveMin, PermitWithoutStream: true}),
	}, n.serverOptions)...)
	services := server.Registrar{Server: s}
	n.queues = queue.New(n.serving, n.store, n.settings.Live().Limits)
	pb.RegisterQueueServiceServer(services, n.queues)
	pb.RegisterAdminServiceServer(services, admin.New(admin.Options{
		Store: n.store, Runner: n.runner, Manager: n.maintenance, Peers: n.peers, Guard: n.guard,
		State: n.state, Switchover: n.switchover, Closing: n.closing, Alone: n.alone(), Logger: n.log,
	}))
	pb.RegisterMaintenanceServiceServer(services, rpc.New(rpc.Options{
		Runner: n.runner, Manager: n.maintenance, Peers: n.peers, Settings: n.settings, Closing: n.closing,
	}))
	pb.RegisterReplicationServiceServer(services,
		replication.NewServer(n.plane.service, n.store, replication.Reception{Self: n.introduction, Met: n.met}))
	healthpb.RegisterHealthServer(services, n.health)
	reflection.Register(services)
	return s
}

// explain logs why the node does not serve, whenever the reason changes.
func (n *node) explain(ctx context.Context) {
	last := ""
	for {
		changed := n.runner.Changed()
		st := n.runner.Status()
		if st.Reason != last && st.Reason != "" && !serves(st.Role) {
			fields := []zap.Field{zap.Stringer("role", st.Role), zap.String("reason", st.Reason)}
			if !st.CoordinatorReachable {
				fields = append(fields, zap.String("coordinator", n.cfg.Coordinator.Type),
					zap.Strings("coordinator_addresses", n.coordinatorAddresses()))
			}
			n.log.Info("waiting", fields...)
		}
		last = st.Reason
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

// coordinatorAddresses are those that the coordinator was configured with.
func (n *node) coordinatorAddresses() []string {
	if n.cfg.Coordinator.Type == config.CoordinatorRaft {
		return n.cfg.Coordinator.Raft.Voters
	}
	return n.cfg.Coordinator.Etcd.Endpoints
}

// serves tells whether a node in this role has nothing to explain.
func serves(r failover.Role) bool {
	return r == failover.RoleActive || r == failover.RoleActiveAlone || r == failover.RoleStandby
}
