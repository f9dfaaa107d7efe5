// SPDX-License-Identifier: Apache-2.0

// Package etcdconn contains the etcd client and the watch of the coordinator and of the directory of a fleet.
package etcdconn

import (
	"cmp"
	"crypto/tls"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
)

// DefaultRequestTimeout is the default of Options.RequestTimeout.
const DefaultRequestTimeout = time.Second

// Options configures New.
type Options struct {
	// Endpoints are the addresses of the etcd members: host:port, or URLs. At least one is required.
	Endpoints []string
	TLS       *tls.Config
	// Credentials, if not nil, are used instead of TLS. They are ignored if an endpoint begins with http://.
	Credentials        credentials.TransportCredentials
	Username, Password string
	// RequestTimeout is the minimum time for each attempt to connect. It does not limit requests. Default 1 s.
	RequestTimeout time.Duration
	// DialOptions are additional options of the connections.
	DialOptions []grpc.DialOption
	// Logger receives the errors of the client library.
	Logger *zap.Logger
}

// New creates a client. It does not wait for etcd, and only fails for invalid options. The caller closes the client.
func New(o Options) (*clientv3.Client, error) {
	if len(o.Endpoints) == 0 {
		return nil, errors.New("etcd: no endpoints (host:port)")
	}
	o.RequestTimeout = cmp.Or(max(o.RequestTimeout, 0), DefaultRequestTimeout)
	o.Logger = cmp.Or(o.Logger, zap.NewNop())
	client, err := newClient(o, clientv3.Config{
		Endpoints: o.Endpoints, TLS: o.TLS,
		DialTimeout: o.RequestTimeout,
		// etcd closes connections that ping more often than every 5 s. Until a silent connection is detected, requests,
		// the watch and the lease use another connection.
		DialKeepAliveTime: 6 * time.Second, DialKeepAliveTimeout: 2 * time.Second,
		// One try per endpoint and one more; the caller makes further retries. Without any connection, a request waits for
		// its timeout.
		MaxUnaryRetries: uint(len(o.Endpoints) + 1),
		DialOptions:     dialOptions(&o),
		Logger:          o.Logger.Named("etcd-client").WithOptions(zap.IncreaseLevel(zap.ErrorLevel)),
	})
	if err != nil {
		return nil, fmt.Errorf("etcd: %w", err)
	}
	return client, nil
}

func dialOptions(o *Options) []grpc.DialOption {
	options := []grpc.DialOption{
		// gRPC's default backoff grows to two minutes, which would delay role changes after an outage of etcd.
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff: backoff.Config{
				BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2,
				MaxDelay: 500 * time.Millisecond,
			},
			MinConnectTimeout: o.RequestTimeout,
		}),
	}
	plain := func(endpoint string) bool { return strings.HasPrefix(endpoint, "http://") }
	if o.Credentials != nil && !slices.ContainsFunc(o.Endpoints, plain) {
		options = append(options, grpc.WithTransportCredentials(o.Credentials))
	}
	return append(options, o.DialOptions...)
}

// newClient creates a client. It starts with an invalid token, and authenticates when etcd rejects that token:
// clientv3.New would fail while etcd is unreachable.
func newClient(o Options, cfg clientv3.Config) (*clientv3.Client, error) {
	if o.Username == "" {
		return clientv3.New(cfg) //nolint:wrapcheck // New does
	}
	cfg.Token = "none yet"
	client, err := clientv3.New(cfg)
	if err != nil {
		return nil, err //nolint:wrapcheck // New does
	}
	client.Token, client.Username, client.Password = "", o.Username, o.Password
	return client, nil
}
