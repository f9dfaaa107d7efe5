package node

import (
	"context"
	"slices"
	"sync/atomic"
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
	"github.com/lockstep-mq/lockstep/server/config"
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
	// keepaliveMin is how often clients may ping.
	keepaliveMin = time.Second
	// diskInterval is how often the free space is looked at.
	diskInterval = 500 * time.Millisecond
)

// newServer makes the gRPC server with all services of the node.
func (n *node) newServer() *grpc.Server {
	s := grpc.NewServer(slices.Concat(codec.ServerOptions(), []grpc.ServerOption{
		grpc.MaxRecvMsgSize(int(n.cfg.Limits.TransactionBytes) + messageSlackBytes),
		grpc.InitialWindowSize(streamWindowBytes), grpc.InitialConnWindowSize(connectionWindowBytes),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: keepaliveTime, Timeout: keepaliveTimeout}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: keepaliveMin, PermitWithoutStream: true}),
	}, n.serverOptions)...)
	pb.RegisterQueueServiceServer(s, server.NewQueueServer(n, n.store, n.cfg.Limits, n.log))
	pb.RegisterAdminServiceServer(s, server.NewAdminServer(n, n.store))
	pb.RegisterMaintenanceServiceServer(s, server.NewMaintenanceServer(n, n.maintenance, n.peers))
	pb.RegisterReplicationServiceServer(s, replication.NewServer(n.plane.service, n.store))
	healthpb.RegisterHealthServer(s, n.health)
	reflection.Register(s)
	return s
}

// diskGuard knows whether the disk is nearly full.
type diskGuard struct{ low atomic.Bool }

// watchDisk looks at the free space until ctx ends.
func (n *node) watchDisk(ctx context.Context) {
	ticker := time.NewTicker(diskInterval)
	defer ticker.Stop()
	for {
		n.lookAtDisk()
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
	}
}

func (n *node) lookAtDisk() {
	stats, err := n.store.Stats()
	if err != nil {
		return // what is wrong with the store is told elsewhere
	}
	low := stats.DiskFree < uint64(n.cfg.Disk.LowWatermark.Bytes()) //nolint:gosec // not negative
	if n.disk.low.Swap(low) == low {
		return
	}
	free := zap.Stringer("free", config.Size(stats.DiskFree)) //nolint:gosec // below 2^63
	limit := zap.Stringer("disk.low-watermark", n.cfg.Disk.LowWatermark)
	if low {
		n.log.Error("the disk is nearly full: publishes are refused until messages are acknowledged or space is freed", free, limit)
	} else {
		n.log.Info("the disk has room again: publishes are accepted", free, limit)
	}
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
				fields = append(fields, zap.String("coordinator", n.cfg.Coordinator.Type), zap.Strings("coordinator_addresses", n.coordinatorAddresses()))
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
