// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"sync"

	"go.uber.org/zap"

	"github.com/lockstep-mq/lockstep/server"
	"github.com/lockstep-mq/lockstep/server/api/inprocgrpc"
)

// inProcess connects the console and the AMQP port to the services of the same process.
type inside struct {
	link  *inprocgrpc.Link
	users sync.WaitGroup // users of the services
}

func (n *node) listenInside(ctx context.Context) error {
	if n.environment.Inside != nil {
		n.environment.Inside(n.insideLink().link)
	}
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

func (n *node) closeInside() {
	if n.console != nil {
		n.console.close()
	}
	if n.amqp != nil {
		n.amqp.close()
	}
}

func (n *node) runInside(ctx context.Context, running *sync.WaitGroup) {
	if n.inside == nil {
		return
	}
	n.register(server.Registrar{Services: n.inside.link, Interceptor: n.interceptor})
	if n.console != nil {
		n.log.Info("console listening", zap.String("url", n.console.server.URL()))
		n.console.run(ctx, n)
	}
	if n.amqp != nil {
		n.log.Info("AMQP 1.0 listening", zap.String("address", n.amqp.address()))
		n.amqp.run(ctx, n)
	}
	if n.environment.Inside != nil {
		n.inside.users.Go(func() { <-ctx.Done() })
	}
	running.Go(func() {
		n.inside.users.Wait()
		n.inside.link.Close(server.StopLimit)
	})
}

func (n *node) insideLink() *inside {
	if n.inside == nil {
		n.inside = &inside{link: inprocgrpc.New(server.Limits(int(n.cfg.Limits.TransactionBytes)))}
	}
	return n.inside
}
