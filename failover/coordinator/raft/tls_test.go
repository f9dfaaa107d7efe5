// SPDX-License-Identifier: Apache-2.0

package raft_test

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/failover/coordinator/raft"
	"github.com/lockstep-mq/lockstep/proto/tlsfiles"
	"github.com/lockstep-mq/lockstep/test/certs"
	"github.com/lockstep-mq/lockstep/test/coordtest"
	"github.com/lockstep-mq/lockstep/test/simnet"
)

// issue issues a voter's certificate for the host in its address.
func issue(t *testing.T, by *certs.CA, address string) *raft.TLS {
	t.Helper()
	host, _, err := net.SplitHostPort(address)
	require.NoError(t, err)
	_, cert, key := by.Issue(t, host, host)
	return secured(t, tlsfiles.Files{CA: by.File, Cert: cert, Key: key})
}

func secured(t *testing.T, files tlsfiles.Files) *raft.TLS {
	t.Helper()
	source, err := tlsfiles.Open(tlsfiles.Options{Files: files})
	require.NoError(t, err)
	return &raft.TLS{Receive: source.Receive, Dial: source.Dial}
}

func TestTLS(t *testing.T) { simulate(t, testTLS) }

func testTLS(t *testing.T) {
	ours, others := certs.New(t, "ours"), certs.New(t, "others")
	c := newCluster(t, func(o *raft.Options) { o.TLS = issue(t, ours, o.Advertise) })
	for _, name := range names() {
		c.start(name)
	}
	c.awaitLeader(witness)
	a := c.connect(nodeA)
	rev, err := a.Swap(timed(t), 0, coordtest.SampleRecord("op1"))
	require.NoError(t, err)

	// A voter that restarts with unusable TLS settings does not participate, and every voter reports the reason.
	for _, bad := range []struct {
		text string
		tune func(*raft.Options)
	}{
		{"for a different name than the one in", func(o *raft.Options) { o.TLS = issue(t, ours, "elsewhere:1") }},
		{"uses TLS and the other does not", func(o *raft.Options) { o.TLS = nil }},
		{"issued by the CA in tls.ca", func(o *raft.Options) { o.TLS = issue(t, others, o.Advertise) }},
	} {
		c.stop(nodeB)
		c.tune = bad.tune
		c.start(nodeB)
		c.awaitProblem(nodeA, bad.text)
		require.Contains(t, c.voters[nodeA].Status().Problem, nodeB)
		rec := coordtest.SampleRecord(bad.text)
		rev, err = a.Swap(timed(t), rev, rec)
		require.NoError(t, err)
	}
	c.awaitProblem(nodeB, "cannot connect to")

	admin, err := raft.NewAdmin(raft.AdminOptions{
		Voters: []string{nodeA}, TLS: issue(t, others, nodeA),
		Dial: c.net.dialFrom("admin"),
	})
	require.NoError(t, err)
	defer admin.Close()
	_, err = admin.Status(timed(t), nodeA)
	require.Error(t, err)
	require.Contains(t, err.Error(), "tls")
}

// A connection to a voter that is silent after the handshake is closed when no request waits for it.
func TestTLSSilentVoter(t *testing.T) { simulate(t, testTLSSilentVoter) }

func testTLSSilentVoter(t *testing.T) {
	ours := certs.New(t, "ours")
	const name = "silent.test:1"
	pair, _, _ := ours.Issue(t, "silent.test", "silent.test")
	n := newNetwork(simnet.New(simnet.Options{Delay: latency}))
	port, err := n.process(name).Listen(timed(t), name)
	require.NoError(t, err)
	ln := tls.NewListener(port, &tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{pair}})
	defer ln.Close()

	// Use a deadline: a cancel by the voter would order events in a way that does not exist in production.
	ctx, cancel := context.WithTimeout(timed(t), 300*time.Millisecond)
	defer cancel()
	left := make(chan error, 1)
	go func() {
		conn, err := ln.Accept()
		if err == nil {
			defer conn.Close()
			_, err = io.Copy(io.Discard, conn)
		}
		left <- err
	}()
	admin, err := raft.NewAdmin(raft.AdminOptions{
		Voters: []string{name}, TLS: issue(t, ours, "admin.test:1"),
		Dial: func(ctx context.Context, _ string) (net.Conn, error) {
			return n.dial(ctx, "admin", name)
		},
	})
	require.NoError(t, err)
	defer admin.Close()
	_, err = admin.Status(ctx, name)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	select {
	case <-left:
	case <-time.After(bound):
		t.Fatal("the connection to the silent voter is still open")
	}
}

// A certificate of the voters' CA that does not belong to a voter permits neither votes nor changes.
func TestTLSNonPeerIsRejected(t *testing.T) { simulate(t, testTLSNonPeerIsRejected) }

func testTLSNonPeerIsRejected(t *testing.T) {
	ours := certs.New(t, "ours")
	c := newCluster(t, func(o *raft.Options) {
		o.TLS = issue(t, ours, o.Advertise)
		if o.Advertise == nodeA {
			o.TLS.Names = []string{"operator.test", "spiffe://pair/operator"}
		}
	})
	for _, name := range names() {
		c.start(name)
	}
	ask := func(tls *raft.TLS, voter string) error {
		admin, err := raft.NewAdmin(raft.AdminOptions{Voters: []string{voter}, TLS: tls, Dial: c.net.dialFrom("admin")})
		require.NoError(t, err)
		defer admin.Close()
		_, err = admin.Status(timed(t), voter)
		return err
	}
	nonPeer, operator := issue(t, ours, "client.test:1"), issue(t, ours, "operator.test:1")
	err := ask(nonPeer, nodeB)
	require.Error(t, err)
	require.Contains(t, err.Error(), "coordinator.raft.tls.names")
	require.NoError(t, ask(issue(t, ours, nodeB), nodeB), "an operator may use a voter's certificate")
	require.NoError(t, ask(operator, nodeA), "the voter accepts this name")
	require.Error(t, ask(operator, nodeB), "the voter does not accept this name")
	_, cert, key := ours.IssueURI(t, "robot", "spiffe://pair/operator")
	robot := secured(t, tlsfiles.Files{CA: ours.File, Cert: cert, Key: key})
	require.NoError(t, ask(robot, nodeA))
}

func TestTLSNeedsBothEnds(t *testing.T) { simulate(t, testTLSNeedsBothEnds) }

func testTLSNeedsBothEnds(t *testing.T) {
	c := newCluster(t, func(o *raft.Options) { o.TLS = &raft.TLS{} })
	_, err := raft.Start(c.options(nodeA))
	require.Error(t, err)
	require.Contains(t, err.Error(), "raft: tls: ")
}

func TestInvalidOptions(t *testing.T) {
	t.Parallel()
	for text, tune := range map[string]func(*raft.Options){
		"no directory":            func(o *raft.Options) { o.Dir = "" },
		"no listen address":       func(o *raft.Options) { o.Listen = "" },
		"three different":         func(o *raft.Options) { o.Voters = o.Voters[:2] },
		"cannot be dialed":        func(o *raft.Options) { o.Advertise = "0.0.0.0:7" },
		"is not among the voters": func(o *raft.Options) { o.Advertise = "z.test:1" },
		"kind":                    func(o *raft.Options) { o.Kind = "other" },
		"raft: listen":            func(o *raft.Options) { o.Listen = "256.0.0.1:1" },
		"voter directory":         func(o *raft.Options) { o.Dir = "/dev/null/x" },
	} {
		c := newClusterOn(t, newNetwork(nil), tune)
		_, err := raft.Start(c.options(nodeA))
		require.Error(t, err, text)
		require.Contains(t, err.Error(), text)
	}
	c := newClusterOn(t, newNetwork(nil), nil)
	o := c.options(nodeA)
	c.start(nodeA)
	_, err := raft.Start(o)
	require.ErrorIs(t, err, raft.ErrInUse)
	c.stop(nodeA)
	o.Kind = raft.KindWitness
	_, err = raft.Start(o)
	require.Error(t, err)
	require.Contains(t, err.Error(), "a node")
}

// A directory with missing files is rejected: it is neither a new directory nor the old one.
func TestIncompleteDirectory(t *testing.T) { simulate(t, testIncompleteDirectory) }

func testIncompleteDirectory(t *testing.T) {
	c := startCluster(t)
	for _, name := range names() {
		c.stop(name)
	}
	dir := c.options(nodeA).Dir
	done, err := raft.Recover(raft.RecoverOptions{Dir: dir}) // creates a snapshot
	require.NoError(t, err)
	require.NotEmpty(t, done.ID)
	require.NoError(t, os.Remove(filepath.Join(dir, "raft.db")))
	_, err = raft.Start(c.options(nodeA))
	require.Error(t, err)
	require.Contains(t, err.Error(), "voter id")
}

// Connections that are not from voters are rejected, and do not affect the cluster.
func TestForeignConnections(t *testing.T) { simulate(t, testForeignConnections) }

func testForeignConnections(t *testing.T) {
	c := startCluster(t)
	for _, text := range []string{
		"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "\x16\x03\x01\x02\x00\x01", "LKS1x\x00\x02{}",
		"LKS1a\xff\xff", "LKS1r\x00\x02{}",
	} {
		conn, err := c.net.dial(timed(t), "foreign", c.voters[witness].ListenAddress())
		require.NoError(t, err)
		_, err = conn.Write([]byte(text))
		require.NoError(t, err)
		require.NoError(t, conn.SetReadDeadline(time.Now().Add(bound)))
		answer, err := io.ReadAll(conn)
		if err == nil && len(answer) > 0 {
			require.EqualValues(t, 1, answer[0], "accepted: %q", text)
		}
		require.NoError(t, conn.Close())
	}
	_, err := c.connect(nodeA).Swap(timed(t), 0, coordtest.SampleRecord("op1"))
	require.NoError(t, err)
}

// slowStart is a connection on which the first writes take a second each.
type slowStart struct {
	net.Conn

	writes int
}

func (s *slowStart) Write(p []byte) (int, error) {
	if s.writes > 0 {
		s.writes--
		<-time.NewTimer(time.Second).C
	}
	return s.Conn.Write(p)
}

// A leader is elected, and another one after its failure, although a handshake takes longer than the timeout of a
// request.
func TestSlowHandshake(t *testing.T) { simulate(t, testSlowHandshake) }

func testSlowHandshake(t *testing.T) {
	ours := certs.New(t, "ours")
	c := newCluster(t, func(o *raft.Options) {
		o.RequestTimeout = 0 // the default
		o.TLS = issue(t, ours, o.Advertise)
		dial := o.Dial
		o.Dial = func(ctx context.Context, address string) (net.Conn, error) {
			conn, err := dial(ctx, address)
			if err != nil {
				return nil, err
			}
			return &slowStart{Conn: conn, writes: 3}, nil // ClientHello, Finished, hello
		}
	})
	for _, name := range names() {
		c.start(name)
	}
	c.awaitLeader(witness)
	_, err := c.connect(nodeA).Swap(timed(t), 0, coordtest.SampleRecord("op1"))
	require.NoError(t, err)
	c.stop(witness)
	require.Eventually(t, func() bool {
		return c.voters[nodeA].Status().State == "Leader" || c.voters[nodeB].Status().State == "Leader"
	}, bound, latency)
}
