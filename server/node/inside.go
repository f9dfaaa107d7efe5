// SPDX-License-Identifier: Apache-2.0

package node

import (
	"sync"

	"google.golang.org/grpc"

	"github.com/lockstep-mq/lockstep/server"
	"github.com/lockstep-mq/lockstep/server/inprocess"
)

// inside is how the console and the port for AMQP, which are clients in the node's own process, reach its services.
type inside struct {
	link  *inprocess.Link
	users sync.WaitGroup // of the services
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
