// SPDX-License-Identifier: Apache-2.0

package etcd_test

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/url"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/client/pkg/v3/transport"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"

	"github.com/lockstep-mq/lockstep/failover"
	"github.com/lockstep-mq/lockstep/failover/coordinator/etcd"
	"github.com/lockstep-mq/lockstep/test/certs"
)

// bound limits all waits. It is not a performance goal.
const bound = time.Minute

// configure changes the configuration of a member before it starts.
type configure func(*embed.Config)

// member is an in-process member of a cluster.
type member struct {
	*embed.Etcd
	once sync.Once
}

// kill terminates a member. Further calls wait for the first one.
func (m *member) kill() {
	m.once.Do(func() {
		m.Server.HardStop()
		m.Close() // waits some seconds for clients to end their watches
	})
}

// members starts an in-process etcd cluster of n members, which is stopped with the test.
func members(t *testing.T, n int, change configure) []*member {
	t.Helper()
	var out []*member
	var err error
	// Members must know each other's ports before they listen, and another process may take one in the meantime.
	for try := 0; try == 0 || try < 10 && errors.Is(err, syscall.EADDRINUSE); try++ {
		out, err = tryMembers(t, n, change)
	}
	require.NoError(t, err)
	for _, e := range out {
		t.Cleanup(e.kill)
	}
	for _, e := range out {
		select {
		case <-e.Server.ReadyNotify():
		case err := <-e.Err():
			require.NoError(t, err)
		case <-time.After(bound):
			require.FailNow(t, "etcd is not ready")
		}
	}
	return out
}

// tryMembers starts the members on free ports. If it returns an error, no member is running.
func tryMembers(t *testing.T, n int, change configure) (out []*member, err error) {
	t.Helper()
	var cfgs []*embed.Config
	initial := ""
	for i := range n {
		cfg := embed.NewConfig()
		cfg.Name = string(rune('a' + i))
		cfg.Dir = t.TempDir()
		cfg.UnsafeNoFsync = true
		cfg.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.NewNop())
		client, peer := freeURL(t), freeURL(t)
		cfg.ListenClientUrls, cfg.AdvertiseClientUrls = []url.URL{client}, []url.URL{client}
		cfg.ListenPeerUrls, cfg.AdvertisePeerUrls = []url.URL{peer}, []url.URL{peer}
		cfg.TickMs, cfg.ElectionMs = 20, 400
		if i > 0 {
			initial += ","
		}
		initial += cfg.Name + "=" + peer.String()
		if change != nil {
			change(cfg)
		}
		cfgs = append(cfgs, cfg)
	}
	for _, cfg := range cfgs {
		cfg.InitialCluster = initial
		e, err := embed.StartEtcd(cfg)
		if err != nil {
			for _, m := range out {
				m.kill()
			}
			return nil, err
		}
		out = append(out, &member{Etcd: e})
	}
	return out, nil
}

func freeURL(t *testing.T) url.URL {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	return url.URL{Scheme: "http", Host: l.Addr().String()}
}

// endpoint returns the host:port of a member.
func endpoint(e *member) string { return e.Config().AdvertiseClientUrls[0].Host }

func endpoints(all []*member) []string {
	var out []string
	for _, e := range all {
		out = append(out, endpoint(e))
	}
	return out
}

// open opens a coordinator that is closed with the test.
func open(t *testing.T, o etcd.Options) *etcd.Coordinator {
	t.Helper()
	if o.Prefix == "" {
		o.Prefix = "/p"
	}
	c, err := etcd.Open(o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	return c
}

// administer returns an etcd client for administrative operations.
func administer(t *testing.T, cfg clientv3.Config) *clientv3.Client {
	t.Helper()
	cfg.Logger = zap.NewNop()
	c, err := clientv3.New(cfg)
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// secure enables TLS with client certificates on a member.
func secure(ca, cert, key string) configure {
	return func(cfg *embed.Config) {
		cfg.ClientTLSInfo = transport.TLSInfo{CertFile: cert, KeyFile: key, TrustedCAFile: ca, ClientCertAuth: true}
		for _, list := range [][]url.URL{cfg.ListenClientUrls, cfg.AdvertiseClientUrls} {
			for i := range list {
				list[i].Scheme = "https"
			}
		}
	}
}

// announce maintains a liveness key until the test ends.
func announce(t *testing.T, c failover.Coordinator, live failover.Live) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- c.Announce(ctx, live) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-done)
	})
}

// swap writes the next version of the record, with retries, and returns it with its revision.
func swap(
	t *testing.T, c failover.Coordinator, rec failover.Record, rev failover.Revision, op string,
) (failover.Record, failover.Revision) {
	t.Helper()
	next := rec.Clone()
	next.Config++
	next.OpID = op
	var now failover.Revision
	var last error
	defer func() {
		if t.Failed() {
			t.Logf("last error: %v", last)
		}
	}()
	require.Eventually(t, func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		var err error
		now, err = c.Swap(ctx, rev, next)
		require.NotErrorIs(t, err, failover.ErrConflict)
		last = err
		return err == nil
	}, bound, 10*time.Millisecond)
	return next, now
}

// clientTLS trusts a CA and presents a certificate, if any.
func clientTLS(pool *certs.CA, cert *tls.Certificate) *tls.Config {
	cfg := &tls.Config{RootCAs: pool.Pool(), MinVersion: tls.VersionTLS12}
	if cert != nil {
		cfg.Certificates = []tls.Certificate{*cert}
	}
	return cfg
}
