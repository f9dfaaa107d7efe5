// SPDX-License-Identifier: Apache-2.0

package node_test

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/failover/coordinator/etcd/embedded"
	"github.com/lockstep-mq/lockstep/failover/coordinator/raft"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/proto/tlsfiles"
	"github.com/lockstep-mq/lockstep/server/config"
	"github.com/lockstep-mq/lockstep/test/certs"
	"github.com/lockstep-mq/lockstep/test/simpair"
)

// certHolder is a process with certificates that are replaced while it runs.
type certHolder struct {
	t    *testing.T
	name string
	tlsfiles.Files
}

func newCertHolder(t *testing.T, name string) *certHolder {
	t.Helper()
	at := func(file string) string { return filepath.Join(t.TempDir(), file) }
	return &certHolder{t: t, name: name, Files: tlsfiles.Files{CA: at("ca.pem"), Cert: at("cert.pem"), Key: at("key.pem")}}
}

// issue installs a certificate that a CA has issued, and a set of trusted CAs.
func (p *certHolder) issue(by *certs.CA, trusted ...*certs.CA) {
	p.t.Helper()
	template := &x509.Certificate{IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}
	if p.name == "client" {
		template = &x509.Certificate{DNSNames: []string{"client.test"}}
	}
	_, cert, key := by.IssueFrom(p.t, p.name, template)
	var all []byte
	for _, a := range trusted {
		raw, err := os.ReadFile(a.File)
		require.NoError(p.t, err)
		all = append(all, raw...)
	}
	require.NoError(p.t, os.WriteFile(p.CA, all, 0o600))
	copyFile(p.t, cert, p.Cert)
	copyFile(p.t, key, p.Key)
}

// rotation is a pair under load, with its coordinator. All connections use TLS.
type rotation struct {
	t              *testing.T
	older, newer   *certs.CA
	a, b, client   *certHolder
	others         []*certHolder // etcd or the voters
	nodeA, nodeB   *testNode
	configB        config.Config
	raft           bool
	published, got atomic.Uint64
	failures       chan error
}

func (r *rotation) certHolder(name string) *certHolder {
	p := newCertHolder(r.t, name)
	p.issue(r.older, r.older)
	return p
}

// all returns all processes that have certificates.
func (r *rotation) all() []*certHolder { return append([]*certHolder{r.a, r.b, r.client}, r.others...) }

func startRotation(t *testing.T, withRaft bool) *rotation {
	t.Helper()
	r := &rotation{
		t: t, older: certs.New(t, "older"), newer: certs.New(t, "newer"), raft: withRaft, failures: make(chan error, 64),
	}
	r.a, r.b, r.client = r.certHolder("a"), r.certHolder("b"), r.certHolder("client")
	secure := func(p *certHolder) config.Config {
		c := settings(t, p.name)
		c.TLS.Cert, c.TLS.Key, c.TLS.CA = p.Cert, p.Key, p.CA
		return c
	}
	ca, cb := secure(r.a), secure(r.b)
	switch {
	case withRaft:
		r.voters(&ca, &cb)
	case simpair.Of(t) != nil:
		etcd := startEtcd(t)
		for _, c := range []*config.Config{&ca, &cb} {
			c.Coordinator.Type, c.Coordinator.Etcd.Endpoints = config.CoordinatorEtcd, etcd.Endpoints()
		}
	default:
		server := r.certHolder("etcd")
		server.issue(r.older, r.older, r.newer) // etcd reads its CAs only once
		etcd, err := embedded.Start(t.Context(), embedded.Options{
			Dir: t.TempDir(), UnsafeNoFsync: true,
			TLS: embedded.TLS{CA: server.CA, Cert: server.Cert, Key: server.Key},
		})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, etcd.Close()) })
		r.others = append(r.others, server)
		for c, p := range map[*config.Config]*certHolder{&ca: r.a, &cb: r.b} {
			c.Coordinator.Type, c.Coordinator.Etcd.Endpoints = config.CoordinatorEtcd, etcd.Endpoints()
			c.Coordinator.Etcd.TLS = config.TLS{CA: p.CA, Cert: p.Cert, Key: p.Key}
		}
	}
	r.configB = cb
	r.nodeA, r.nodeB = start(t, ca), start(t, cb)
	require.Eventually(t, func() bool {
		roles := [2]pb.Role{r.nodeA.role(), r.nodeB.role()}
		return roles == [2]pb.Role{pb.Role_ROLE_ACTIVE, pb.Role_ROLE_STANDBY} ||
			roles == [2]pb.Role{pb.Role_ROLE_STANDBY, pb.Role_ROLE_ACTIVE}
	}, 2*testTimeout, 10*time.Millisecond)
	return r
}

// voters configures a quorum of three voters as the coordinator: the two nodes and a witness.
func (r *rotation) voters(ca, cb *config.Config) {
	t := r.t
	witness := r.certHolder("witness")
	r.others = append(r.others, witness)
	var addresses []string
	for range 3 {
		l := freePort(t)
		addresses = append(addresses, l.Addr().String())
		require.NoError(t, l.Close())
	}
	for i, c := range []*config.Config{ca, cb} {
		c.Coordinator.Type = config.CoordinatorRaft
		p := []*certHolder{r.a, r.b}[i]
		c.Coordinator.Raft = config.Raft{
			Dir: t.TempDir(), Listen: addresses[i], Voters: addresses, TLS: config.RaftTLS{CA: p.CA, Cert: p.Cert, Key: p.Key},
		}
	}
	source, err := tlsfiles.Open(tlsfiles.Options{Files: witness.Files})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	o := raft.Options{
		Dir: t.TempDir(), Listen: addresses[2], Voters: addresses,
		TLS: &raft.TLS{Receive: source.Receive, Dial: source.Dial},
	}
	if w := simpair.Of(t); w != nil {
		o.Bind, o.Dial = w.Listen, w.Dial
	}
	go func() { done <- raft.RunWitness(ctx, o, nil) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-done)
	})
}

func (r *rotation) addresses() []string {
	return []string{r.nodeA.ready.Address, r.nodeB.ready.Address}
}

func (r *rotation) open(ctx context.Context, failFast bool) (*client.Client, error) {
	return client.OpenWith(ctx, client.Options{
		Addresses: r.addresses(), FailFast: failFast, DialOptions: clientOptions(r.t),
		TLSFiles: client.TLSFiles{CA: r.client.CA, Cert: r.client.Cert, Key: r.client.Key},
	})
}

// fail records a failure.
func (r *rotation) fail(format string, args ...any) {
	select {
	case r.failures <- fmt.Errorf(format, args...):
	default:
	}
}

// streams publishes and consumes over streams of one connection. It does not reconnect, so the end of a stream is
// a failure.
func (r *rotation) streams(ctx context.Context, running *sync.WaitGroup) {
	active := r.nodeA
	if active.role() != pb.Role_ROLE_ACTIVE {
		active = r.nodeB
	}
	active.createQueue("q")
	conn := connect(r.t, active.ready.Address, r.client.Files)
	queues := pb.NewQueueServiceClient(conn)
	publish, err := queues.PublishStream(ctx)
	require.NoError(r.t, err)
	consume, err := queues.Consume(ctx)
	require.NoError(r.t, err)
	require.NoError(r.t, consume.Send(&pb.ConsumeRequest{Attach: &pb.Attach{Queue: "q"}, Credit: 100}))
	running.Go(func() {
		producer := uuid.NewString()
		for n := uint64(1); ctx.Err() == nil; n++ {
			err := publish.Send(&pb.PublishStreamRequest{Publish: &pb.PublishRequest{
				Queue: "q", Messages: []*pb.Message{{Body: []byte("x")}},
				Producer: &pb.Producer{Id: producer, Epoch: 1, Sequence: n},
			}})
			var resp *pb.PublishStreamResponse
			if err == nil {
				resp, err = publish.Recv()
			}
			if text := resp.GetError().GetMessage(); err == nil && text != "" {
				err = errors.New(text)
			}
			if err != nil && ctx.Err() == nil {
				r.fail("publish stream: %w", err)
				return
			}
			r.published.Add(1)
			time.Sleep(5 * time.Millisecond) //nolint:forbidigo // rate of the load, in simulated time
		}
	})
	running.Go(func() {
		for ctx.Err() == nil {
			resp, err := consume.Recv()
			if err != nil && ctx.Err() == nil {
				r.fail("consume stream: %w", err)
				return
			}
			if len(resp.GetMessages()) == 0 {
				continue
			}
			ack := &pb.ConsumeRequest{Credit: uint32(len(resp.GetMessages()))}
			for _, m := range resp.GetMessages() {
				ack.Ack = append(ack.Ack, &pb.SequenceRange{First: m.GetSequence(), Last: m.GetSequence()})
			}
			r.got.Add(uint64(len(ack.Ack)))
			if err := consume.Send(ack); err != nil && ctx.Err() == nil {
				r.fail("acknowledge: %w", err)
				return
			}
		}
	})
}

// connections opens new connections continuously. Each connection must be accepted.
func (r *rotation) connections(ctx context.Context, running *sync.WaitGroup) (count *atomic.Uint64) {
	count = new(atomic.Uint64)
	running.Go(func() {
		for ctx.Err() == nil {
			c, err := r.open(ctx, true)
			if err == nil {
				_, err = c.WaitActive(ctx)
				err = errors.Join(err, c.Close())
			}
			if err != nil && ctx.Err() == nil {
				r.fail("new connection: %w", err)
			}
			count.Add(1)
			time.Sleep(100 * time.Millisecond) //nolint:forbidigo // rate of the load, in simulated time
		}
	})
	return count
}

// roles polls both nodes continuously. The standby must remain in sync, and the coordinator must remain reachable.
func (r *rotation) roles(ctx context.Context, running *sync.WaitGroup) {
	term := r.nodeA.status().GetPair().GetTerm()
	running.Go(func() {
		for ctx.Err() == nil {
			for _, n := range []*testNode{r.nodeA, r.nodeB} {
				st, err := n.admin.GetStatus(ctx, &pb.GetStatusRequest{})
				if ctx.Err() != nil {
					return
				}
				p := st.GetPair()
				if err != nil || p.GetTerm() != term || !p.GetCoordinatorReachable() {
					r.fail("%s: term %d, coordinator %v: %w", n.config.Node.Name, p.GetTerm(),
						p.GetCoordinatorReachable(), err)
				}
				for _, member := range p.GetNodes() {
					if !member.GetInSync() {
						r.fail("%s reports that %s is not in sync", n.config.Node.Name, member.GetName())
					}
				}
			}
			time.Sleep(50 * time.Millisecond) //nolint:forbidigo // poll interval, in simulated time
		}
	})
}

// used waits until both nodes report at least count certificates and each CA certificate has the given subject.
func (r *rotation) used(subject string, count int) {
	r.t.Helper()
	for _, n := range []*testNode{r.nodeA, r.nodeB} {
		require.Eventually(r.t, func() bool {
			list := n.status().GetCertificates()
			for _, c := range list {
				if c.GetCa() && c.GetSubject() != subject {
					return false
				}
			}
			return len(list) >= count
		}, testTimeout, 20*time.Millisecond, "%s of %s", subject, n.config.Node.Name)
	}
}

// A node reports the certificate of the witness and its expiry time, even after the certificate was replaced.
func TestCertificateOfWitness(t *testing.T) { simulated(t, testCertificateOfWitness) }

func testCertificateOfWitness(t *testing.T) {
	r := startRotation(t, true)
	witness := r.others[len(r.others)-1]
	reported := func() *pb.CertificateStatus {
		for _, c := range r.nodeA.status().GetCertificates() {
			if c.GetUse() == "witness" {
				return c
			}
		}
		return nil
	}
	require.Eventually(t, func() bool { return reported() != nil }, testTimeout, 20*time.Millisecond)
	require.Contains(t, reported().GetSubject(), "witness")
	require.False(t, reported().GetCa())
	ends := time.Now().Add(13 * 24 * time.Hour).Truncate(time.Second)
	_, cert, key := r.older.IssueFrom(t, "witness-2", &x509.Certificate{
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, NotBefore: time.Now().Add(-time.Hour), NotAfter: ends,
	})
	copyFile(t, cert, witness.Cert)
	copyFile(t, key, witness.Key)
	require.Eventually(t, func() bool {
		return ends.Equal(reported().GetEnds().AsTime())
	}, 2*testTimeout, 100*time.Millisecond, "it is %v", reported())
	require.Contains(t, reported().GetSubject(), "witness-2")
}

// All certificates, keys and CAs of a pair, its coordinator and its clients can be replaced under load. No stream
// ends and no new connection is rejected. The standby and the coordinator remain connected.
func TestRotationUnderLoad(t *testing.T) {
	for name, withRaft := range map[string]bool{"pair": false, "raft": true} {
		t.Run(name, func(t *testing.T) {
			simulated(t, func(t *testing.T) { testRotationUnderLoad(t, withRaft) })
		})
	}
}

func testRotationUnderLoad(t *testing.T, withRaft bool) {
	r := startRotation(t, withRaft)
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	r.streams(ctx, &running)
	connections := r.connections(ctx, &running)
	r.roles(ctx, &running)
	progress := func() {
		t.Helper()
		published, got, made := r.published.Load(), r.got.Load(), connections.Load()
		// Each process checks its files at most once per second.
		time.Sleep(1500 * time.Millisecond) //nolint:forbidigo // simulated time
		require.Greater(t, r.published.Load(), published+50)
		require.Greater(t, r.got.Load(), got+50)
		require.Greater(t, connections.Load(), made+5)
	}
	progress()
	r.replace(progress)
	r.used("CN=newer", map[bool]int{false: 2, true: 4}[withRaft]) // with raft, also those of the voter
	former := newCertHolder(t, "client")
	former.issue(r.older, r.newer)
	_, err := pb.NewAdminServiceClient(connect(t, r.nodeA.ready.Address, former.Files)).
		GetStatus(t.Context(), &pb.GetStatusRequest{})
	require.Error(t, err, "the previous CA is no longer trusted")
	cancel()
	running.Wait()
	require.Empty(t, r.failures, "%v", drained(r.failures))
	t.Logf("%d published, %d delivered, %d connections made, nothing refused and no stream ended",
		r.published.Load(), r.got.Load(), connections.Load())
	r.restartB()
}

// replace replaces all certificates in three steps. It calls settle after each step.
func (r *rotation) replace(settle func()) {
	r.t.Helper()
	for _, p := range r.all() { // trust both CAs
		if p.name != "etcd" {
			p.issue(r.older, r.older, r.newer)
		}
	}
	settle()
	for _, p := range r.all() { // new certificates
		p.issue(r.newer, r.older, r.newer)
	}
	settle()
	for _, p := range r.all() { // trust only the new CA
		if p.name != "etcd" {
			p.issue(r.newer, r.newer)
		}
	}
	settle()
}

// restartB restarts node b when it has only certificates of the new CA.
func (r *rotation) restartB() {
	r.t.Helper()
	r.nodeB.stop()
	r.nodeB = start(r.t, r.configB)
	require.Eventually(r.t, func() bool {
		return r.nodeB.role() == pb.Role_ROLE_STANDBY || r.nodeB.role() == pb.Role_ROLE_ACTIVE
	}, 2*testTimeout, 20*time.Millisecond)
}

// The certificates for etcd can be replaced. The test uses a real etcd and real sockets.
func TestRotationWithEtcd(t *testing.T) {
	r := startRotation(t, false)
	r.replace(func() {})
	r.used("CN=newer", 4)
	r.restartB()
}

func drained(c chan error) (all []error) {
	for {
		select {
		case err := <-c:
			all = append(all, err)
		default:
			return all
		}
	}
}
