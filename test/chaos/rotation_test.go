// SPDX-License-Identifier: Apache-2.0

//go:build unix && deep

package chaos

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/failover/coordinator/etcd/embedded"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/proto/tlsfiles"
	"github.com/lockstep-mq/lockstep/test/certs"
	"github.com/lockstep-mq/lockstep/test/cluster"
)

// holder has certificate files, which are replaced while the process that uses them is running.
type holder struct {
	t    *testing.T
	name string
	tlsfiles.Files
}

func newHolder(t *testing.T, name string) *holder {
	t.Helper()
	dir := t.TempDir()
	at := func(file string) string { return filepath.Join(dir, file) }
	return &holder{t: t, name: name, Files: tlsfiles.Files{CA: at("ca.pem"), Cert: at("cert.pem"), Key: at("key.pem")}}
}

// assign replaces the holder's certificate and its trusted CAs. The client's certificate does not contain the nodes'
// address, so it is not valid for a node.
func (h *holder) assign(by *certs.CA, trusted ...*certs.CA) {
	h.t.Helper()
	template := &x509.Certificate{IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}
	if h.name == "client" {
		template = &x509.Certificate{DNSNames: []string{"client.test"}}
	}
	_, cert, key := by.IssueFrom(h.t, h.name, template)
	var authorities []string
	for _, a := range trusted {
		authorities = append(authorities, a.File)
	}
	h.put(h.CA, authorities...)
	h.put(h.Cert, cert)
	h.put(h.Key, key)
}

// put atomically replaces a file with the concatenation of other files.
func (h *holder) put(file string, others ...string) {
	h.t.Helper()
	var all []byte
	for _, other := range others {
		raw, err := os.ReadFile(other)
		require.NoError(h.t, err)
		all = append(all, raw...)
	}
	require.NoError(h.t, os.WriteFile(file+".new", all, 0o600))
	require.NoError(h.t, os.Rename(file+".new", file))
}

// source opens the holder's files for a client in this process.
func (h *holder) source() *tlsfiles.Source {
	h.t.Helper()
	s, err := tlsfiles.Open(tlsfiles.Options{Files: h.Files})
	require.NoError(h.t, err)
	return s
}

// rotation is a pair with TLS on every connection, and its clients.
type rotation struct {
	t            *testing.T
	older, newer *certs.CA
	client       *holder
	holders      []*holder // all except etcd
	etcd         *holder   // nil with raft
	pair         *cluster.Pair

	published, consumed, connections atomic.Uint64
	failures                         chan error
}

func (r *rotation) holder(name string) *holder {
	h := newHolder(r.t, name)
	h.assign(r.older, r.older)
	r.holders = append(r.holders, h)
	return h
}

func startRotation(t *testing.T, raft bool) *rotation {
	t.Helper()
	r := &rotation{t: t, older: certs.New(t, "older"), newer: certs.New(t, "newer"), failures: make(chan error, 64)}
	r.client = r.holder("client")
	o := cluster.Options{Raft: raft, Settings: steady(), NodeSettings: map[string]map[string]string{}}
	coordinator := "coordinator.raft.tls"
	if raft {
		w := r.holder("witness")
		o.WitnessFlags = []string{"--raft-ca=" + w.CA, "--raft-cert=" + w.Cert, "--raft-key=" + w.Key}
	} else {
		coordinator = "coordinator.etcd.tls"
		o.Settings["coordinator.etcd.endpoints"] = r.startEtcd()
	}
	for _, name := range []string{"a", "b"} {
		h := r.holder(name)
		o.NodeSettings[name] = map[string]string{
			"tls.ca": h.CA, "tls.cert": h.Cert, "tls.key": h.Key,
			coordinator + ".ca": h.CA, coordinator + ".cert": h.Cert, coordinator + ".key": h.Key,
		}
	}
	o.Credentials = r.client.source().Credentials(nil)
	r.pair = start(t, o)
	return r
}

// startEtcd starts an embedded etcd that requires client certificates. The rotation also replaces etcd's certificate.
// Etcd trusts both CAs from the start, because it reads them only once.
func (r *rotation) startEtcd() (endpoint string) {
	r.t.Helper()
	r.etcd = newHolder(r.t, "etcd")
	r.etcd.assign(r.older, r.older, r.newer)
	etcd, err := embedded.Start(r.t.Context(), embedded.Options{
		Dir: r.t.TempDir(), UnsafeNoFsync: true,
		TLS: embedded.TLS{CA: r.etcd.CA, Cert: r.etcd.Cert, Key: r.etcd.Key},
	})
	require.NoError(r.t, err)
	r.t.Cleanup(func() { require.NoError(r.t, etcd.Close()) })
	return etcd.Endpoints()[0]
}

// fail records an error that a client must not receive.
func (r *rotation) fail(format string, args ...any) {
	select {
	case r.failures <- fmt.Errorf(format, args...):
	default:
	}
}

// pace is the interval between a client's operations. It leaves CPU time to other tests.
const pace = 2 * time.Millisecond

// load publishes and consumes on streams that are never reopened, and continuously creates new connections. It
// records each error.
func (r *rotation) load(ctx context.Context, running *sync.WaitGroup) {
	active, _ := inSync(r.t, r.pair)
	queues := pb.NewQueueServiceClient(active.Conn())
	_, err := queues.CreateQueue(ctx, &pb.CreateQueueRequest{Name: "q"})
	require.NoError(r.t, err)
	conn, err := grpc.NewClient("passthrough:///"+active.Address,
		grpc.WithTransportCredentials(r.client.source().Credentials(nil)))
	require.NoError(r.t, err)
	r.t.Cleanup(func() { _ = conn.Close() })
	queues = pb.NewQueueServiceClient(conn)
	publish, err := queues.PublishStream(ctx)
	require.NoError(r.t, err)
	consume, err := queues.Consume(ctx)
	require.NoError(r.t, err)
	require.NoError(r.t, consume.Send(&pb.ConsumeRequest{Attach: &pb.Attach{Queue: "q"}, Credit: 100}))
	running.Go(func() { r.publish(ctx, publish) })
	running.Go(func() { r.consume(ctx, consume) })
	running.Go(func() { r.connect(ctx) })
}

func (r *rotation) publish(
	ctx context.Context, stream grpc.BidiStreamingClient[pb.PublishStreamRequest, pb.PublishStreamResponse],
) {
	producer := uuid.NewString()
	for n := uint64(1); ctx.Err() == nil; n++ {
		err := stream.Send(&pb.PublishStreamRequest{Publish: &pb.PublishRequest{
			Queue: "q", Messages: []*pb.Message{{Body: []byte("x")}},
			Producer: &pb.Producer{Id: producer, Epoch: 1, Sequence: n},
		}})
		var resp *pb.PublishStreamResponse
		if err == nil {
			resp, err = stream.Recv()
		}
		if text := resp.GetError().GetMessage(); err == nil && text != "" {
			err = errors.New(text)
		}
		if err != nil {
			if ctx.Err() == nil {
				r.fail("publish: %w", err)
			}
			return
		}
		r.published.Add(1)
		time.Sleep(pace) //nolint:forbidigo // rate of the load
	}
}

func (r *rotation) consume(
	ctx context.Context, stream grpc.BidiStreamingClient[pb.ConsumeRequest, pb.ConsumeResponse],
) {
	for ctx.Err() == nil {
		resp, err := stream.Recv()
		if n := uint32(len(resp.GetMessages())); err == nil && n > 0 {
			ack := &pb.ConsumeRequest{Credit: n}
			for _, m := range resp.GetMessages() {
				ack.Ack = append(ack.Ack, &pb.SequenceRange{First: m.GetSequence(), Last: m.GetSequence()})
			}
			r.consumed.Add(uint64(n))
			err = stream.Send(ack)
		}
		if err != nil {
			if ctx.Err() == nil {
				r.fail("consume: %w", err)
			}
			return
		}
	}
}

func (r *rotation) open(ctx context.Context) (*client.Client, error) {
	return client.OpenWith(ctx, client.Options{
		Addresses: r.pair.Addresses(), FailFast: true,
		TLSFiles: client.TLSFiles{CA: r.client.CA, Cert: r.client.Cert, Key: r.client.Key},
	})
}

// connect continuously creates new clients; each must find the active.
func (r *rotation) connect(ctx context.Context) {
	for ctx.Err() == nil {
		c, err := r.open(ctx)
		if err == nil {
			_, err = c.WaitActive(ctx)
			err = errors.Join(err, c.Close())
		}
		if err != nil && ctx.Err() == nil {
			r.fail("new connection: %w", err)
		}
		r.connections.Add(1)
		time.Sleep(10 * pace) //nolint:forbidigo // rate of the load
	}
}

// settle waits until all processes have checked their files. A process checks them when a connection starts, at most
// once a second.
func (r *rotation) settle() {
	r.t.Helper()
	time.Sleep(1200 * time.Millisecond) //nolint:forbidigo // no event signals that a process has checked its files
	r.progress()
}

// progress waits until each of the clients makes progress, and fails the test if a client received an error.
func (r *rotation) progress() {
	r.t.Helper()
	published, consumed, connections := r.published.Load(), r.consumed.Load(), r.connections.Load()
	require.Eventually(r.t, func() bool {
		return r.published.Load() > published+20 && r.consumed.Load() > consumed+20 &&
			r.connections.Load() > connections+3 || len(r.failures) > 0
	}, bound, 5*time.Millisecond)
	r.noErrors()
}

func (r *rotation) noErrors() {
	r.t.Helper()
	select {
	case err := <-r.failures:
		require.NoError(r.t, err, "a client received an error")
	default:
	}
}

// again restarts a process that is not the active, so that all its connections use the current files of both ends.
func (r *rotation) again(n *cluster.Node) {
	r.t.Helper()
	require.NoError(r.t, n.Kill())
	require.NoError(r.t, n.Start())
	inSync(r.t, r.pair)
	r.progress()
}

// refused checks that an address accepts the certificate of present, and rejects the certificate of former.
func (r *rotation) refused(address string, former, present *holder) {
	r.t.Helper()
	// An accepted connection may receive no data. A rejected connection receives an alert, even on a slow machine.
	require.NoError(r.t, dial(r.t.Context(), address, present, 300*time.Millisecond),
		"%s rejects a valid certificate", address)
	err := dial(r.t.Context(), address, former, bound)
	require.Error(r.t, err, "%s accepts a certificate of the old CA", address)
	require.Contains(r.t, err.Error(), "tls:", "%s", address)
}

// dial opens a TLS connection. With TLS 1.3, a client receives the rejection of its certificate in its first read. If
// no data is received for the given time, the certificate was accepted.
func dial(ctx context.Context, address string, as *holder, silence time.Duration) error {
	as.t.Helper()
	ctx, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	config := as.source().Dial()
	config.NextProtos = []string{"h2"}
	conn, err := (&tls.Dialer{Config: config}).DialContext(ctx, "tcp", address)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetReadDeadline(time.Now().Add(silence))
	_, err = conn.Read(make([]byte, 1))
	if errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// The CA and all certificates of a pair, its coordinator and its clients are replaced under load. No stream ends, no
// call fails, and no new connection is rejected. Processes started during the rotation can connect to processes that
// were already running. At the end, no process trusts the older CA, and the standby can take over.
func TestCertificateRotation(t *testing.T) {
	t.Parallel() // mostly idle
	for _, raft := range []bool{true, false} {
		t.Run(map[bool]string{true: "raft", false: "etcd"}[raft], func(t *testing.T) {
			t.Parallel() // mostly idle
			startRotation(t, raft).run()
		})
	}
}

func (r *rotation) run() {
	t := r.t
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	r.load(ctx, &running)
	r.progress()
	active, standby := inSync(t, r.pair)

	for _, h := range r.holders { // both CAs
		h.assign(r.older, r.older, r.newer)
	}
	r.settle()
	for _, h := range r.holders { // new certificates
		h.assign(r.newer, r.older, r.newer)
	}
	if r.etcd != nil {
		r.etcd.assign(r.newer, r.older, r.newer)
	}
	r.settle()
	if r.pair.Witness != nil {
		r.again(r.pair.Witness)
	}
	for _, h := range r.holders { // the new CA only
		h.assign(r.newer, r.newer)
	}
	r.settle()
	r.again(standby)
	require.Equal(t, active.Name, r.activeName(), "the roles are unchanged")

	former := newHolder(t, "client")
	former.assign(r.older, r.newer) // trusts the newer CA, but is not trusted
	ports := r.pair.Addresses()
	if r.pair.Witness != nil {
		ports = append(ports, r.pair.VoterOf(r.pair.A), r.pair.VoterOf(r.pair.B), r.pair.Witness.Address)
	}
	for _, address := range ports {
		r.refused(address, former, r.client)
	}
	for _, n := range r.pair.Nodes() {
		r.onlyNewer(n)
	}
	cancel()
	running.Wait()
	r.noErrors()
	t.Logf("%d published, %d delivered, %d connections, no errors", r.published.Load(), r.consumed.Load(),
		r.connections.Load())

	require.NoError(t, active.Kill())
	c, err := client.OpenWith(t.Context(), client.Options{
		Addresses: r.pair.Addresses(),
		TLSFiles:  client.TLSFiles{CA: r.client.CA, Cert: r.client.Cert, Key: r.client.Key},
	})
	require.NoError(t, err)
	defer func() { _ = c.Close() }()
	_, err = c.Publish(limited(t), "q", client.Message{Body: []byte("after")})
	require.NoError(t, err, "the standby serves with its current CA")
}

// onlyNewer waits until a node uses only the newer CA, for its own port and for its coordinator.
func (r *rotation) onlyNewer(n *cluster.Node) {
	r.t.Helper()
	require.Eventually(r.t, func() bool {
		st, err := n.Status(r.t.Context())
		authorities := 0
		for _, c := range st.GetCertificates() {
			if c.GetCa() {
				authorities++
				if c.GetSubject() != "CN=newer" {
					return false
				}
			}
		}
		return err == nil && authorities >= 2
	}, bound, 50*time.Millisecond, "%s", n.Name)
}

func (r *rotation) activeName() string {
	r.t.Helper()
	n, err := r.pair.WaitActive(limited(r.t))
	require.NoError(r.t, err)
	return n.Name
}
