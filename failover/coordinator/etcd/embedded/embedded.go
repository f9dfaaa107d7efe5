// SPDX-License-Identifier: Apache-2.0

// Package embedded starts a single-member etcd server in this process, by default on loopback, for the demo,
// development and tests.
package embedded

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
	"google.golang.org/grpc"
)

const startLimit = 30 * time.Second

// Options configures Start.
type Options struct {
	// Dir is the data directory; required.
	Dir string
	// Address is the host:port for clients. Default 127.0.0.1:0.
	Address string
	// UnsafeNoFsync skips every fsync, for tests and the demo only: a machine crash may lose the cluster record.
	UnsafeNoFsync bool
	// QuotaBytes is the database size at which etcd rejects writes. Default 2 GiB, as in etcd.
	QuotaBytes int64
	// TLS, if its Cert is set, secures client connections and requires client certificates.
	TLS    TLS
	Logger *zap.Logger
}

// TLS contains paths of PEM files. Cert and Key are reloaded for each connection, CA is not.
type TLS struct {
	CA        string
	Cert, Key string
}

// Server is a running etcd server.
type Server struct {
	etcd    *embed.Etcd
	address string
	stop    context.CancelFunc // ends the streams of all clients
}

// Start starts an etcd server, and waits until it is ready, for at most 30 s or until ctx ends. The server runs
// until Close. If Start returns an error, no server is running.
func Start(ctx context.Context, o Options) (*Server, error) {
	if o.Dir == "" {
		return nil, errors.New("embedded etcd: no data directory")
	}
	if o.Address == "" {
		o.Address = "127.0.0.1:0"
	}
	if o.Logger == nil {
		o.Logger = zap.NewNop()
	}
	cfg := embed.NewConfig()
	cfg.Name = "lockstep"
	cfg.Dir = filepath.Clean(o.Dir)
	cfg.UnsafeNoFsync = o.UnsafeNoFsync
	cfg.QuotaBackendBytes = o.QuotaBytes
	cfg.ZapLoggerBuilder = embed.NewZapLoggerBuilder(
		o.Logger.Named("etcd").WithOptions(zap.IncreaseLevel(zap.ErrorLevel)))
	client := url.URL{Scheme: "http", Host: o.Address}
	if o.TLS.Cert != "" {
		client.Scheme = "https"
		cfg.ClientTLSInfo = transport.TLSInfo{
			TrustedCAFile: o.TLS.CA, CertFile: o.TLS.Cert, KeyFile: o.TLS.Key, ClientCertAuth: true,
		}
	}
	peer := url.URL{Scheme: "http", Host: "127.0.0.1:0"} // unused: there is only one member
	cfg.ListenClientUrls, cfg.AdvertiseClientUrls = []url.URL{client}, []url.URL{client}
	cfg.ListenPeerUrls, cfg.AdvertisePeerUrls = []url.URL{peer}, []url.URL{peer}
	cfg.InitialCluster = cfg.InitialClusterFromName(cfg.Name)
	// A single member elects itself; a shorter election timeout makes it ready sooner.
	cfg.TickMs, cfg.ElectionMs = 10, 100
	cfg.AutoCompactionMode, cfg.AutoCompactionRetention = "revision", "1000"

	// etcd's graceful stop waits some seconds for clients to end their watches, which they never do.
	streams, stop := context.WithCancel(context.WithoutCancel(ctx))
	cfg.GRPCAdditionalServerOptions = []grpc.ServerOption{grpc.ChainStreamInterceptor(endWith(streams))}

	e, err := embed.StartEtcd(cfg)
	if err != nil {
		stop()
		return nil, fmt.Errorf("start embedded etcd in %s on %s (is another process using the directory or the port?): %w",
			o.Dir, o.Address, err)
	}
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	select {
	case <-e.Server.ReadyNotify():
		return &Server{etcd: e, address: e.Clients[0].Addr().String(), stop: stop}, nil
	case err := <-e.Err():
		stop()
		e.Close()
		return nil, fmt.Errorf("embedded etcd in %s: %w", o.Dir, err)
	case <-ctx.Done():
		stop()
		e.Close()
		return nil, fmt.Errorf("embedded etcd in %s is not ready: %w", o.Dir, ctx.Err())
	}
}

// Address returns the host:port for clients.
func (s *Server) Address() string { return s.address }

// Endpoints returns the endpoints for etcd.Options.
func (s *Server) Endpoints() []string { return []string{s.address} }

// Err returns a channel that receives an error if etcd fails while running.
func (s *Server) Err() <-chan error { return s.etcd.Err() }

// Close stops the server. The data directory remains.
func (s *Server) Close() error {
	s.stop()
	s.etcd.Close()
	return nil
}

func endWith(ctx context.Context) grpc.StreamServerInterceptor {
	return func(srv any, ss grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
		own, cancel := context.WithCancel(ss.Context())
		defer cancel()
		defer context.AfterFunc(ctx, cancel)()
		return handler(srv, stream{ServerStream: ss, ctx: own})
	}
}

type stream struct {
	grpc.ServerStream
	ctx context.Context //nolint:containedctx // required by grpc.ServerStream
}

func (s stream) Context() context.Context { return s.ctx }
