// SPDX-License-Identifier: Apache-2.0

package node_test

import (
	"io/fs"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	calls "github.com/lockstep-mq/lockstep/server/auth"
	"github.com/lockstep-mq/lockstep/server/node"
	"github.com/lockstep-mq/lockstep/store/datadir"
	"github.com/lockstep-mq/lockstep/store/vfs"
	"github.com/lockstep-mq/lockstep/test/vfs/faultfs"
)

// resetPair is a pair of which nodes were stopped and requested to delete all access rules.
type resetPair struct {
	t     *testing.T
	nodes map[string]*testNode
}

// startResetPair starts a pair with the given rules of queue q, and stops it.
func startResetPair(t *testing.T, rules ...string) *resetPair {
	t.Helper()
	etcd := startEtcd(t)
	p := &resetPair{t: t, nodes: map[string]*testNode{}}
	for _, name := range []string{"a", "b"} {
		c := settingsOfPair(t, name, etcd)
		c.Access.Operators = []string{"root"}
		p.nodes[name] = startNamed(t, c)
		p.nodes["a"].waitForAs(as(t.Context(), "root"), pb.Role_ROLE_ACTIVE_ALONE)
	}
	p.wait("b", pb.Role_ROLE_STANDBY)
	for _, principal := range rules {
		p.nodes["a"].grant(principal, "q", mayPublish)
	}
	p.wait("a", pb.Role_ROLE_ACTIVE)
	p.nodes["b"].stop()
	p.nodes["a"].stop()
	return p
}

func (p *resetPair) wait(name string, role pb.Role) {
	p.t.Helper()
	p.nodes[name].waitForAs(as(p.t.Context(), "root"), role)
}

func (p *resetPair) marker(name string) string {
	return datadir.AccessReset(p.nodes[name].config.Data.Dir)
}

// request does the same as `lockstep access reset`.
func (p *resetPair) request(names ...string) {
	p.t.Helper()
	for _, name := range names {
		require.NoError(p.t, vfs.WriteFileAtomic(diskOf(p.t), p.marker(name), []byte("delete all access rules\n")))
	}
}

func (p *resetPair) requested(name string) bool {
	p.t.Helper()
	_, err := diskOf(p.t).Stat(p.marker(name))
	if err != nil {
		require.ErrorIs(p.t, err, fs.ErrNotExist)
	}
	return err == nil
}

// start starts a node with the given hook of its disk, and waits until it has the role.
func (p *resetPair) start(name string, role pb.Role, hook func(faultfs.Op) error) {
	p.t.Helper()
	disk := faultfs.New(diskOf(p.t))
	if hook != nil {
		disk.SetHook(hook)
	}
	p.nodes[name] = startIn(p.t, p.nodes[name].config, node.Options{
		FS: disk, Environment: node.Environment{Authenticators: []calls.Authenticator{byName}},
	})
	p.wait(name, role)
}

func (p *resetPair) principals(name string) (all []string) {
	p.t.Helper()
	got, err := p.nodes[name].access().ListAccess(as(p.t.Context(), "root"), &pb.ListAccessRequest{})
	require.NoError(p.t, err)
	for _, r := range got.GetRules() {
		all = append(all, r.GetPrincipal())
	}
	return all
}

// activateB makes b active, and waits until b has executed its request, if any.
func (p *resetPair) activateB() {
	p.t.Helper()
	_, err := p.nodes["a"].admin.Switchover(as(p.t.Context(), "root"), &pb.SwitchoverRequest{})
	require.NoError(p.t, err)
	p.wait("b", pb.Role_ROLE_ACTIVE)
	time.Sleep(5 * time.Second) //nolint:forbidigo // simulated time
}

// If an access reset is requested on both nodes, the rules are deleted once: a later failover does not delete new
// rules. This also applies if the first reset finds no rules.
func TestResetOnBothNodes(t *testing.T) { simulated(t, testResetOnBothNodes) }

func testResetOnBothNodes(t *testing.T) {
	for _, rules := range [][]string{{"alice"}, nil} {
		p := startResetPair(t, rules...)
		p.request("a", "b")
		p.start("a", pb.Role_ROLE_ACTIVE_ALONE, nil)
		p.start("b", pb.Role_ROLE_STANDBY, nil)
		require.Eventually(t, func() bool { return !p.requested("a") && !p.requested("b") }, testTimeout, time.Second)
		require.Empty(t, p.principals("a"))
		p.nodes["a"].grant("bob", "q", mayPublish)
		p.activateB()
		require.Equal(t, []string{"bob"}, p.principals("b"), rules)
		p.nodes["a"].stop()
		p.nodes["b"].stop()
	}
}

// Other changes of the rules do not cancel a requested reset, even if they revoke the last rule.
func TestResetAfterOtherChanges(t *testing.T) { simulated(t, testResetAfterOtherChanges) }

func testResetAfterOtherChanges(t *testing.T) {
	p := startResetPair(t, "alice")
	p.request("b")
	p.start("a", pb.Role_ROLE_ACTIVE_ALONE, nil)
	p.start("b", pb.Role_ROLE_STANDBY, nil)
	p.nodes["a"].revoke("alice", "q", mayPublish)
	p.nodes["a"].grant("bob", "q", mayPublish)
	time.Sleep(5 * time.Second) //nolint:forbidigo // simulated time
	require.True(t, p.requested("b"))
	p.activateB()
	require.Empty(t, p.principals("b"))
	require.False(t, p.requested("b"))
}

// A standby that has applied the reset of the other node, but was stopped before it removed its own request, ignores
// this request after its next start.
func TestResetOfOtherNodeBeforeRestart(t *testing.T) { simulated(t, testResetOfOtherNodeBeforeRestart) }

func testResetOfOtherNodeBeforeRestart(t *testing.T) {
	p := startResetPair(t, "alice")
	p.request("a", "b")
	p.start("a", pb.Role_ROLE_ACTIVE_ALONE, nil)
	p.start("b", pb.Role_ROLE_STANDBY, func(op faultfs.Op) error {
		if op.Kind == faultfs.OpRemove && filepath.Base(op.Name) == datadir.AccessResetName {
			return fs.ErrPermission
		}
		return nil
	})
	require.Eventually(t, func() bool { return !p.requested("a") }, testTimeout, time.Second)
	p.nodes["a"].grant("bob", "q", mayPublish)
	time.Sleep(5 * time.Second) //nolint:forbidigo // simulated time
	require.True(t, p.requested("b"))
	p.nodes["b"].stop()
	p.start("b", pb.Role_ROLE_STANDBY, nil)
	require.Eventually(t, func() bool { return !p.requested("b") }, testTimeout, time.Second)
	p.activateB()
	require.Equal(t, []string{"bob"}, p.principals("b"))
}

// A reset that is requested after an earlier reset of the pair deletes the rules again.
func TestResetAfterEarlierReset(t *testing.T) { simulated(t, testResetAfterEarlierReset) }

func testResetAfterEarlierReset(t *testing.T) {
	n := startNamedAlone(t, nil)
	p := &resetPair{t: t, nodes: map[string]*testNode{"a": n}}
	for _, principal := range []string{"alice", "bob"} {
		p.nodes["a"].grant(principal, "q", mayPublish)
		p.nodes["a"].stop()
		p.request("a")
		p.start("a", pb.Role_ROLE_ACTIVE_ALONE, nil)
		require.Eventually(t, func() bool { return !p.requested("a") }, testTimeout, time.Second)
		require.Empty(t, p.principals("a"))
	}
}
