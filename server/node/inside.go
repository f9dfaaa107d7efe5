// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"sync"

	"go.uber.org/zap"
	"google.golang.org/grpc"

	"github.com/lockstep-mq/lockstep/server"
	"github.com/lockstep-mq/lockstep/server/inprocess"
)

// inside is how the console and the port for AMQP, which are clients in the node's own process, reach its services.
type inside struct {
	link  *inprocess.Link
	users sync.WaitGroup // of the services
}

// listenInside binds the ports of its users.
func (n *node) listenInside(ctx context.Context) error {
	if n.cfg.AMQP.Listen != "" {
		if err := n.listenAMQP(ctx); err != nil {
			return err
		}
	}
	if n.cfg.Console.Listen != "" {
		return n.listenConsole(ctx)
	}
	return nil
}

// closeInside gives those ports back.
func (n *node) closeInside() {
	if n.console != nil {
		n.console.close()
	}
	if n.amqp != nil {
		n.amqp.close()
	}
}

// runInside serves on those ports until ctx ends.
func (n *node) runInside(ctx context.Context, running *sync.WaitGroup) {
	if n.console != nil {
		n.log.Info("console", zap.String("url", n.console.server.URL()))
		n.console.run(ctx, n)
	}
	if n.amqp != nil {
		n.log.Info("AMQP 1.0", zap.String("address", n.amqp.address()))
		n.amqp.run(ctx, n)
	}
	if n.inside != nil {
		n.inside.run(n, running)
	}
}

// insideLink makes the link to the own services when its first user comes.
func (n *node) insideLink() *inside {
	if n.inside == nil {
		n.inside = &inside{link: inprocess.New()}
	}
	return n.inside
}

// dial connects to the services. The connection must be closed.
func (i *inside) dial() (*grpc.ClientConn, error) { return i.link.Dial() }

// run serves the services to their users until all of those have ended.
func (i *inside) run(n *node, running *sync.WaitGroup) {
	inner := server.New(int(n.cfg.Limits.TransactionBytes), n.gate, i.link.ServerOption())
	n.register(inner)
	running.Go(func() { _ = inner.Serve(i.link.Listener()) }) // it ends with Shutdown
	running.Go(func() {
		i.users.Wait()
		inner.Shutdown()
	})
}
