// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"fmt"
	"slices"

	"go.uber.org/zap"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/lockstep-mq/lockstep/failover"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/replication"
	"github.com/lockstep-mq/lockstep/server"
	"github.com/lockstep-mq/lockstep/server/api/admin"
	"github.com/lockstep-mq/lockstep/server/api/queue"
	"github.com/lockstep-mq/lockstep/server/auth"
	accessrpc "github.com/lockstep-mq/lockstep/server/auth/access/rpc"
	"github.com/lockstep-mq/lockstep/server/auth/admission"
	admissionrpc "github.com/lockstep-mq/lockstep/server/auth/admission/rpc"
	"github.com/lockstep-mq/lockstep/server/auth/audit"
	"github.com/lockstep-mq/lockstep/server/config"
	"github.com/lockstep-mq/lockstep/server/ops/maintenance/rpc"
	memberrpc "github.com/lockstep-mq/lockstep/server/ops/member/rpc"
	"github.com/lockstep-mq/lockstep/server/ops/site"
)

func (n *node) newServer() server.Server {
	o := auth.Options{
		Rules: n.rules, Observe: n.audit.Observe, Authenticators: slices.Clip(n.environment.Authenticators),
	}
	if f := n.forwardAuthenticator(); f != nil {
		o.Authenticators = append(o.Authenticators, f.Authenticate)
	}
	if i := n.peerAuthenticator(); i != nil {
		o.Authenticators, o.Unauthenticated = append(o.Authenticators, i.Authenticate), i.NonPeer
	} else {
		o.Authenticators = append(o.Authenticators, n.peerSecretIdentity)
	}
	o.Authenticators = append(o.Authenticators, n.siteTokenIdentity, n.fleetTokenIdentity, n.authn.Authenticate)
	n.interceptor = auth.New(o)
	n.queues = queue.New(n.serving, n.store, n.settings.Live().Limits, n.rules)
	n.queues.SetTracer(n.tracing)
	n.queues.SetHistory(n.history)
	n.queues.SetMember(n.fleet)
	n.schedules = queue.NewSchedules(n.queues, n.log.Named("schedules"))
	s := server.New(int(n.cfg.Limits.TransactionBytes), n.interceptor,
		slices.Concat(admission.ServerOptions(), n.serverOptions)...)
	n.register(s.Registrar)
	pb.RegisterReplicationServiceServer(s,
		replication.NewServer(n.plane.service, n.store, replication.Responder{Self: n.hello, OnHandshake: n.duplicateSeen}))
	s.Reflect()
	return s
}

func (n *node) register(s server.Registrar) {
	pb.RegisterQueueServiceServer(s, n.queues)
	pb.RegisterScheduleServiceServer(s, n.schedules)
	pb.RegisterAdminServiceServer(s, admin.New(admin.Options{
		Store: n.store, Runner: n.runner, Manager: n.maintenance, Peers: n.peers, Guard: n.guard,
		State: n.state, Switchover: n.switchover, Closing: n.closing, Alone: n.alone(), Logger: n.log,
		History: n.history, Site: n.site.Info, NotFound: n.fleet.NotFound,
	}))
	pb.RegisterSiteServiceServer(s, site.NewService(n.site, n.closing))
	pb.RegisterFleetServiceServer(s, memberrpc.New(memberrpc.Options{
		Manager: n.fleet, Mover: n.mover, Pair: n.cfg.Fleet.Pair, NotActive: n.notActive,
	}))
	pb.RegisterMaintenanceServiceServer(s, rpc.New(rpc.Options{
		Runner: n.runner, Manager: n.maintenance, Peers: n.peers, Settings: n.settings, Closing: n.closing,
	}))
	pb.RegisterAuditServiceServer(s, audit.NewService(n.audit, n.closing))
	pb.RegisterConnectionServiceServer(s, admissionrpc.New(n.connections, n.cfg.Node.Name))
	pb.RegisterAccessServiceServer(s, accessrpc.New(accessrpc.Options{
		Serving: n.serving, Store: n.store, Rules: n.rules, Load: n.loadAccess, Used: n.queues.QuotaUse, Alone: n.alone(),
	}))
	healthpb.RegisterHealthServer(s, n.health)
}

func (n *node) openAudit() (*audit.Log, error) {
	l, err := audit.Open(audit.Options{
		File: n.cfg.Audit.File, MaxBytes: n.cfg.Audit.MaxBytes.Bytes(), Keep: n.cfg.Audit.Keep, Node: n.cfg.Node.Name,
		LSN: func() uint64 { return n.store.Applied().LSN }, Logger: n.log.Named("audit"),
	})
	if err != nil {
		return nil, fmt.Errorf("%w: %w", config.ErrInvalid, err)
	}
	return l, nil
}

// logNotServing logs why the node is neither active nor in sync, each time the reason changes, until ctx ends.
func (n *node) logNotServing(ctx context.Context) {
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
			n.log.Info("node is not serving clients", fields...)
		}
		last = st.Reason
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

func (n *node) coordinatorAddresses() []string {
	if n.cfg.Coordinator.Type == config.CoordinatorRaft {
		return n.cfg.Coordinator.Raft.Voters
	}
	return n.cfg.Coordinator.Etcd.Endpoints
}

func serves(r failover.Role) bool {
	return r == failover.RoleActive || r == failover.RoleActiveAlone || r == failover.RoleStandby
}
