//go:build unix

package cluster

import (
	"context"
	"fmt"
	"net/url"
	"sync"
	"time"

	"go.etcd.io/etcd/server/v3/embed"
)

// etcdServer is a coordinator in this process that can be ended and started again over its data.
type etcdServer struct {
	dir string

	mu     sync.Mutex // guards all below
	server *embed.Etcd
	client string // host:port; another one after each start
}

// etcdReady is how long etcd gets to become ready.
const etcdReady = time.Minute

func startEtcd(ctx context.Context, dir string) (*etcdServer, error) {
	e := &etcdServer{dir: dir}
	if err := e.start(ctx); err != nil {
		return nil, err
	}
	return e, nil
}

// address is where etcd listened last, host:port.
func (e *etcdServer) address() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.client
}

func (e *etcdServer) start(ctx context.Context) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	anyPort := []url.URL{{Scheme: "http", Host: "127.0.0.1:0"}}
	c := embed.NewConfig()
	c.Dir = e.dir
	c.LogLevel, c.LogOutputs = "error", []string{"/dev/null"}
	c.ListenClientUrls, c.AdvertiseClientUrls = anyPort, anyPort
	c.ListenPeerUrls, c.AdvertisePeerUrls = anyPort, anyPort
	c.InitialCluster = c.InitialClusterFromName(c.Name)
	// What it holds is one small record; what is tested is the pair.
	c.UnsafeNoFsync = true
	server, err := embed.StartEtcd(c)
	if err != nil {
		return fmt.Errorf("start etcd: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, etcdReady)
	defer cancel()
	select {
	case <-server.Server.ReadyNotify():
	case <-ctx.Done():
		server.Close()
		return fmt.Errorf("start etcd: %w", ctx.Err())
	}
	e.server, e.client = server, server.Clients[0].Addr().String()
	return nil
}

func (e *etcdServer) stop() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.server != nil {
		e.server.Close()
		e.server = nil
	}
	return nil
}
