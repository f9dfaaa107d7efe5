// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"context"
	"fmt"
	"sync"

	"github.com/lockstep-mq/lockstep/failover/coordinator/etcd/embedded"
)

// etcdServer is an in-process etcd that can be stopped and restarted with its data. Without a directory, it represents
// an external etcd.
type etcdServer struct {
	o embedded.Options

	mu     sync.Mutex       // guards all fields below
	server *embedded.Server // nil while it is stopped
	last   string           // last listen address, host:port
}

func startEtcd(ctx context.Context, o embedded.Options) (*etcdServer, error) {
	e := &etcdServer{o: o}
	if err := e.start(ctx); err != nil {
		return nil, err
	}
	return e, nil
}

func (e *etcdServer) address() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.last
}

func (e *etcdServer) start(ctx context.Context) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.o.Dir == "" {
		return nil // external
	}
	if e.server != nil {
		return fmt.Errorf("etcd is already running in %s", e.o.Dir)
	}
	server, err := embedded.Start(ctx, e.o)
	if err != nil {
		return err
	}
	e.server, e.last = server, server.Address()
	return nil
}

func (e *etcdServer) stop() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.server == nil {
		return nil
	}
	err := e.server.Close()
	e.server = nil
	return err
}
