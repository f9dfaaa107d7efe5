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
type inProcess struct {
	link  *inprocgrpc.Link
	users sync.WaitGroup // components that use the services
}

func (n *node) listenInProcess(ctx context.Context) error {
	if n.environment.InProcess != nil {
		n.inProcessLink()
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

func (n *node) closeInProcess() {
	if n.console != nil {
		n.console.close()
	}
	if n.amqp != nil {
		n.amqp.close()
	}
}

func (n *node) runInProcess(ctx context.Context, running *sync.WaitGroup) {
	if n.inProcess == nil {
		return
	}
	n.register(server.Registrar{Services: n.inProcess.link, Interceptor: n.interceptor})
	if n.console != nil {
		n.log.Info("console listening", zap.String("url", n.console.server.URL()))
		n.console.run(ctx, n)
	}
	if n.amqp != nil {
		n.log.Info("AMQP 1.0 listening", zap.String("address", n.amqp.address()))
		n.amqp.run(ctx, n)
	}
	if n.environment.InProcess != nil {
		n.environment.InProcess(n.inProcess.link)
		n.inProcess.users.Go(func() { <-ctx.Done() })
	}
	running.Go(func() {
		n.inProcess.users.Wait()
		n.inProcess.link.Close(server.StopLimit)
	})
}

func (n *node) inProcessLink() *inProcess {
	if n.inProcess == nil {
		n.inProcess = &inProcess{link: inprocgrpc.New(server.Limits(int(n.cfg.Limits.TransactionBytes)))}
	}
	return n.inProcess
}
