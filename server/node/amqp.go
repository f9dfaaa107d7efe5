// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"fmt"
	"net"
	"sync/atomic"

	"go.uber.org/zap"

	"github.com/lockstep-mq/lockstep/amqp/broker"
	"github.com/lockstep-mq/lockstep/failover"
	"github.com/lockstep-mq/lockstep/server/api/inprocgrpc"
	"github.com/lockstep-mq/lockstep/server/auth/admission"
)

const amqpProtocol = "AMQP 1.0"

type amqpPort struct {
	listener  net.Listener
	advertise string // address advertised to clients
	server    atomic.Pointer[broker.Server]
}

func (n *node) listenAMQP(ctx context.Context) error {
	l, err := n.environment.listen(ctx, n.cfg.AMQP.Listen)
	if err != nil {
		return fmt.Errorf("amqp.listen: %w", err)
	}
	n.inProcessLink()
	n.amqp = &amqpPort{listener: l, advertise: n.advertisedAMQP(l.Addr())}
	return nil
}

func (p *amqpPort) address() string { return p.listener.Addr().String() }

func (n *node) advertisedAMQP(bound net.Addr) string {
	if n.cfg.AMQP.Advertise != "" {
		return n.cfg.AMQP.Advertise
	}
	host, _, err := net.SplitHostPort(n.advertise)
	_, port, perr := net.SplitHostPort(bound.String())
	if err != nil || perr != nil {
		return bound.String()
	}
	return net.JoinHostPort(host, port)
}

// enterAMQP registers an AMQP client as a caller of the node's services. as returns a context for its calls.
func (n *node) enterAMQP(c broker.Client) (as func(context.Context) context.Context, leave func()) {
	key, leave := n.inProcess.link.Enter(inprocgrpc.Caller{Addr: c.Address, TLS: c.TLS})
	return func(ctx context.Context) context.Context { return inprocgrpc.As(ctx, key) }, leave
}

// amqpRole returns the status of the pair for AMQP clients, and a channel that is closed when that status may
// have changed.
func (n *node) amqpRole() (broker.Role, <-chan struct{}) {
	changed := n.runner.Changed()
	st := n.runner.Status()
	r := broker.Role{Active: n.serving.Get() != nil}
	if st.Role == failover.RoleFenced || st.Role == failover.RoleStandby {
		r.Active = false
	}
	if st.Record == nil {
		return r, changed
	}
	r.Replica = n.site.Refusal() != nil
	for _, info := range st.Record.Nodes {
		if info.ID == st.Record.Active && info.ID != st.Self.ID {
			r.ActiveAddress = info.AMQP
		}
	}
	return r, changed
}

func (p *amqpPort) run(ctx context.Context, n *node) {
	o := broker.Options{
		Listener: n.connections.AddPort(p.listener, amqpProtocol), ContainerID: n.cfg.Node.Name, Version: n.version,
		Services: n.inProcess.link, Role: n.amqpRole, MaxMessageBytes: int(n.cfg.Limits.MessageBytes),
		MaxTransactionBytes: int(n.cfg.Limits.TransactionBytes),
		AutoCreate:          func() bool { return n.cfg.AMQP.AutoCreate },
		Enter:               n.enterAMQP, Hello: admission.Name, Logger: n.log.Named("amqp"),
		Forward: n.forwardAMQP,
	}
	if n.secrets.own != nil {
		o.TLS = n.secrets.own.Server(n.cfg.TLS.ClientCertificates())
	}
	server := broker.New(o)
	p.server.Store(server)
	n.inProcess.users.Go(func() {
		if err := server.Run(ctx); err != nil {
			n.log.Error("AMQP listener failed", zap.Error(err)) // the node continues to serve other protocols
		}
	})
}

func (p *amqpPort) defects() uint64 {
	if p == nil {
		return 0
	}
	if s := p.server.Load(); s != nil {
		return s.Defects()
	}
	return 0
}

func (p *amqpPort) close() { _ = p.listener.Close() } // a second close is harmless
