// SPDX-License-Identifier: Apache-2.0

package node_test

import (
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/lockstep-mq/lockstep/failover"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/server/config"
	"github.com/lockstep-mq/lockstep/server/node"
	"github.com/lockstep-mq/lockstep/store/datadir"
	"github.com/lockstep-mq/lockstep/store/page"
	"github.com/lockstep-mq/lockstep/test/coordtest"
	"github.com/lockstep-mq/lockstep/test/simpair"
	"github.com/lockstep-mq/lockstep/test/vfs/faultfs"
)

// fails runs a node that must fail to start, and returns its error.
func fails(t *testing.T, c config.Config) error {
	t.Helper()
	if w := simpair.Of(t); w != nil {
		err := w.Launch(c, node.Options{}).Err()
		require.Error(t, err)
		return err
	}
	err := node.Run(t.Context(), c, zap.NewNop(), node.Options{})
	require.Error(t, err)
	return err
}

// A node does not start if its port is in use. The test uses real sockets, because the operating system returns
// the error.
func TestPortInUse(t *testing.T) {
	taken := freePort(t)
	c := settings(t, "a")
	c.Listen = taken.Addr().String()
	err := fails(t, c)
	require.ErrorIs(t, err, node.ErrListen)
	require.Contains(t, err.Error(), c.Listen)
	require.NoError(t, taken.Close())
	start(t, c).waitFor(pb.Role_ROLE_ACTIVE_ALONE) // the failed start has released its resources
}

// A node does not start if its address belongs to another machine. The test uses real sockets, because the
// operating system returns the error.
func TestAddressOfAnotherMachine(t *testing.T) {
	c := settings(t, "a")
	c.Listen, c.Insecure = "192.0.2.1:7420", true
	err := fails(t, c)
	require.ErrorIs(t, err, node.ErrListen)
}

// A node does not start on the data directory of a running node. The running node is not affected.
func TestDataDirInUse(t *testing.T) { simulated(t, testDataDirInUse) }

func testDataDirInUse(t *testing.T) {
	n := startAlone(t, nil)
	c := n.config
	c.Listen = "127.0.0.1:0"
	err := fails(t, c)
	require.ErrorIs(t, err, datadir.ErrInUse)
	require.Contains(t, err.Error(), c.Data.Dir)
	n.createQueue("q") // the first node still serves clients
}

// A node does not start on a page file with a newer format version.
func TestNewerFormat(t *testing.T) { simulated(t, testNewerFormat) }

func testNewerFormat(t *testing.T) {
	n := start(t, settingsOnDisk(t, "alone"))
	n.stop()
	name := datadir.PageFile(n.config.Data.Dir)
	raw, err := os.ReadFile(name)
	require.NoError(t, err)
	binary.LittleEndian.PutUint32(raw[12:], 99) // see the layout in store/page/format.go
	binary.LittleEndian.PutUint32(raw[8:], crc32.Checksum(raw[12:64], crc32.MakeTable(crc32.Castagnoli)))
	require.NoError(t, os.WriteFile(name, raw, 0o600))
	err = fails(t, n.config)
	require.ErrorIs(t, err, page.ErrNewerVersion)
}

// A node does not start on a data directory that contains a page file but no identity.
func TestPageFileWithoutIdentity(t *testing.T) { simulated(t, testPageFileWithoutIdentity) }

func testPageFileWithoutIdentity(t *testing.T) {
	c := settingsOnDisk(t, "a")
	require.NoError(t, os.WriteFile(datadir.PageFile(c.Data.Dir), []byte("not a page file"), 0o600))
	err := fails(t, c)
	require.ErrorIs(t, err, datadir.ErrIdentityLost)
	require.Contains(t, err.Error(), "data.dir")
}

// A node does not join a pair with the store of another pair.
func TestDataOfAnotherPair(t *testing.T) { simulated(t, testDataOfAnotherPair) }

func testDataOfAnotherPair(t *testing.T) {
	etcd := startEtcd(t)
	first := start(t, settingsOfPair(t, "a", etcd))
	first.waitFor(pb.Role_ROLE_ACTIVE_ALONE)
	first.stop()
	other := settingsOfPair(t, "x", etcd)
	other.Coordinator.Etcd.Prefix = "/lockstep/other"
	unknown := start(t, other)
	unknown.waitFor(pb.Role_ROLE_ACTIVE_ALONE)

	c := first.config
	c.Coordinator.Etcd.Prefix = "/lockstep/other"
	err := fails(t, c)
	require.ErrorIs(t, err, failover.ErrOtherPair)

	// A prefix without a cluster record is also rejected (INV-9).
	c.Coordinator.Etcd.Prefix = "/lockstep/empty"
	lost := start(t, c)
	lost.waitFor(pb.Role_ROLE_RECOVERING)
	require.Eventually(t, func() bool { return strings.Contains(lost.status().GetReason(), "lockstep pair adopt") },
		testTimeout, 10*time.Millisecond)
}

// A standalone node does not start on the data of a pair, unless the directory contains the file standalone.
func TestStandaloneRefusesDataOfPair(t *testing.T) { simulated(t, testStandaloneRefusesDataOfPair) }

func testStandaloneRefusesDataOfPair(t *testing.T) {
	etcd := startEtcd(t)
	c := settingsOfPair(t, "a", etcd)
	c.Data.Dir = t.TempDir()
	n := start(t, c)
	n.waitFor(pb.Role_ROLE_ACTIVE_ALONE)
	n.createQueue("q")
	n.stop()
	c.Coordinator.Type = config.CoordinatorNone
	err := fails(t, c)
	require.ErrorIs(t, err, node.ErrStandaloneData)
	mark := filepath.Join(c.Data.Dir, "standalone")
	require.Contains(t, err.Error(), mark)
	// Use the override that the error recommends.
	require.NoError(t, os.WriteFile(mark, nil, 0o600))
	alone := start(t, c)
	alone.waitFor(pb.Role_ROLE_ACTIVE_ALONE)
	alone.publish("q", "x")
}

// If etcd is unreachable, a node waits and reports the reason. It continues when etcd is reachable. The test uses
// a real etcd.
func TestCoordinatorStartsLater(t *testing.T) {
	port := freePort(t)
	address := port.Addr().String()
	require.NoError(t, port.Close())
	c := settings(t, "a")
	c.Coordinator.Type = config.CoordinatorEtcd
	c.Coordinator.Etcd.Endpoints = []string{address}
	n := start(t, c)
	require.Eventually(t, func() bool {
		st := n.status()
		return st.GetRole() == pb.Role_ROLE_RECOVERING && st.GetReason() != "" && st.GetReason() != "starting"
	}, testTimeout, 10*time.Millisecond)
	t.Logf("reason: %s", n.status().GetReason())
	etcd := coordtest.StartEtcd(t, t.TempDir(), address)
	t.Cleanup(func() { require.NoError(t, etcd.Close()) })
	n.waitFor(pb.Role_ROLE_ACTIVE_ALONE)
}

// While both nodes are in sync, a failure of etcd does not block writes.
func TestCoordinatorLost(t *testing.T) { simulated(t, testCoordinatorLost) }

func testCoordinatorLost(t *testing.T) {
	etcd := startEtcd(t)
	active, _ := startPair(t, etcd)
	active.createQueue("q")
	simpair.Of(t).CoordinatorOf(&active.config).SetDown(true)
	require.Eventually(t, func() bool { return !active.status().GetPair().GetCoordinatorReachable() }, testTimeout,
		10*time.Millisecond)
	active.publish("q", "x")
	require.Equal(t, pb.Role_ROLE_ACTIVE, active.role())
}

// A node does not start with invalid settings or an invalid CA file.
func TestInvalidSettings(t *testing.T) { simulated(t, testInvalidSettings) }

func testInvalidSettings(t *testing.T) {
	c := settings(t, "a")
	c.PageSize = 1000
	require.ErrorIs(t, fails(t, c), config.ErrInvalid)
	c = settings(t, "a")
	c.Coordinator.Type = config.CoordinatorEtcd
	c.Coordinator.Etcd.Endpoints = []string{"127.0.0.1:1"}
	c.Coordinator.Etcd.TLS.CA = filepath.Join(t.TempDir(), "none.pem")
	err := fails(t, c)
	require.ErrorIs(t, err, config.ErrInvalid)
	require.Contains(t, err.Error(), "none.pem")
	require.NoError(t, os.WriteFile(c.Coordinator.Etcd.TLS.CA, []byte("nothing"), 0o600))
	require.ErrorIs(t, fails(t, c), config.ErrInvalid)
}

// Run returns nil after a stop request, even if consumers and watchers are attached.
func TestStopsOnRequest(t *testing.T) { simulated(t, testStopsOnRequest) }

func testStopsOnRequest(t *testing.T) {
	n := startAlone(t, nil)
	n.createQueue("q")
	n.consume("q", 1)
	_, err := n.admin.WatchStatus(t.Context(), &pb.WatchStatusRequest{})
	require.NoError(t, err)
	start := time.Now()
	n.stop()
	took(t, 0, start)
}

// A failed sync (INV-7) stops the node with an error. No message of the failed write is acknowledged. The other
// node takes over with all acknowledged messages.
func TestFailedSync(t *testing.T) { simulated(t, testFailedSync) }

func testFailedSync(t *testing.T) {
	etcd := startEtcd(t)
	faults := faultfs.New(diskOf(t))
	a := startOn(t, settingsOfPair(t, "a", etcd), faults)
	a.waitFor(pb.Role_ROLE_ACTIVE_ALONE)
	b := start(t, settingsOfPair(t, "b", etcd))
	b.waitFor(pb.Role_ROLE_STANDBY)
	a.waitFor(pb.Role_ROLE_ACTIVE)
	a.createQueue("q")
	a.publish("q", "one")

	broken := errors.New("broken disk")
	faults.SetHook(func(op faultfs.Op) error {
		if op.Kind == faultfs.OpSync {
			return broken
		}
		return nil
	})
	_, err := a.queues.Publish(t.Context(), &pb.PublishRequest{
		Queue: "q", Messages: batch("two"), Producer: &pb.Producer{Id: "p", Sequence: 1},
	})
	require.Error(t, err)
	require.ErrorIs(t, a.failure(), failover.ErrFailed)
	require.ErrorIs(t, a.failure(), broken)
	a.failed = true

	b.waitFor(pb.Role_ROLE_ACTIVE_ALONE)
	_, err = b.queues.Publish(t.Context(), &pb.PublishRequest{
		Queue: "q", Messages: batch("two"), Producer: &pb.Producer{Id: "p", Sequence: 1},
	})
	require.NoError(t, err)
	require.Equal(t, []string{"one", "two"}, bodies(b.consume("q", 10).take(2)))
}

// A connection without a complete HTTP/2 preface or without a call is closed after the handshake timeout.
func TestConnectionWithoutCalls(t *testing.T) { simulated(t, testConnectionWithoutCalls) }

func testConnectionWithoutCalls(t *testing.T) {
	n := startAlone(t, nil)
	silent := map[string]string{
		"nothing": "", "half of the preface": "PRI * HTTP/2.0\r\n",
		"preface alone": "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
	}
	open := make(map[string]net.Conn)
	for name, sent := range silent {
		conn, err := dialer(t)(t.Context(), "tcp", n.ready.Address)
		require.NoError(t, err)
		t.Cleanup(func() { _ = conn.Close() })
		_, err = conn.Write([]byte(sent))
		require.NoError(t, err)
		require.NoError(t, conn.SetReadDeadline(time.Now().Add(testTimeout)))
		open[name] = conn
	}
	for name, conn := range open {
		_, err := io.Copy(io.Discard, conn)
		require.NotErrorIs(t, err, os.ErrDeadlineExceeded, "%s: the connection is still open", name)
	}
}
