// SPDX-License-Identifier: Apache-2.0

package doctor_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	"github.com/lockstep-mq/lockstep/cmd/internal/cli/doctor"
	"github.com/lockstep-mq/lockstep/cmd/internal/clitest"
	"github.com/lockstep-mq/lockstep/test/harness"
)

// diagnose runs the command and returns its findings by check and subject.
func diagnose(t *testing.T, c clitest.CLI, args ...string) (map[string]doctor.Finding, int) {
	t.Helper()
	stdout, stderr, code := c.Run("", append([]string{"doctor", "-o", "json", "--disk-low-watermark", "0"}, args...)...)
	var r struct {
		Problems int
		Findings []doctor.Finding
	}
	require.NoError(t, json.Unmarshal([]byte(stdout), &r), "%s%s", stdout, stderr)
	require.Equal(t, r.Problems > 0, code == cli.ExitError, "%s%s", stdout, stderr)
	all := map[string]doctor.Finding{}
	for _, f := range r.Findings {
		all[strings.TrimSuffix(f.Check+", "+f.Subject, ", ")] = f
	}
	return all, code
}

// found returns a finding with a key that starts with name.
func found(t *testing.T, all map[string]doctor.Finding, name string) doctor.Finding {
	t.Helper()
	for key, f := range all {
		if strings.HasPrefix(key, name) {
			return f
		}
	}
	require.FailNow(t, "no such finding", "%s in %v", name, all)
	return doctor.Finding{}
}

// doctor checks a running node, a node before it joins, and wrong addresses. It does not affect the running node.
func TestRunningPair(t *testing.T) {
	p, c := clitest.StartNodes(t, false)
	active, standby := clitest.InSync(t, p, c)
	c.OK("publish", "orders", "one", "--create")
	etcd := strings.TrimPrefix(p.Coordinator(), "etcd is on ")
	dir := filepath.Join(standby.Dir, "data")
	before := names(t, dir)
	args := []string{"--data-dir", dir, "--listen", standby.Address, "--coordinator-etcd-endpoints", etcd}
	all, code := diagnose(t, c, args...)
	require.Equal(t, cli.ExitOK, code, "%+v", all)
	require.Equal(t, doctor.OK, found(t, all, "ports, listen").Verdict)
	require.Contains(t, found(t, all, "etcd, "+etcd).Measured, "etcd 3.")
	require.Contains(t, found(t, all, "etcd, record").Measured, "pair ")
	require.Equal(t, doctor.OK, found(t, all, "pair").Verdict)
	require.Contains(t, found(t, all, "pair").Measured, "of pair ")
	other := found(t, all, "other node")
	require.Equal(t, active.Name+", "+active.Address, other.Subject)
	require.Contains(t, other.Measured, "clock offset ")
	if _, err := os.Stat("/proc/locks"); err == nil {
		pid := fmt.Sprint(standby.PID())
		require.Contains(t, found(t, all, "data directory").Measured, pid)
		require.Contains(t, found(t, all, "ports, listen").Measured, pid)
		require.Contains(t, found(t, all, "disk sync").Measured, "running node")
	}
	require.Equal(t, before, names(t, dir), "doctor leaves no file")
	clitest.InSync(t, p, c)
	text, stderr, code := c.Run("", append([]string{"doctor"}, args...)...)
	require.Equal(t, cli.ExitOK, code, stderr)
	require.Contains(t, text, "not checked")

	// A node without a store is checked, with the address of the active in --peer.
	free := t.TempDir()
	all, _ = diagnose(t, c, "--data-dir", free, "--listen", "127.0.0.1:0", "--coordinator-etcd-endpoints", etcd,
		"--peer", active.Address)
	require.Equal(t, doctor.OK, found(t, all, "other node").Verdict)
	// The address of the node itself is rejected as the peer's address.
	all, code = diagnose(t, c, append(args, "--peer", standby.Address)...)
	require.Equal(t, cli.ExitError, code)
	other = found(t, all, "other node")
	require.Equal(t, doctor.Problem, other.Verdict)
	require.Contains(t, other.Meaning, "this node")
	all, _ = diagnose(t, c, append(args, "--peer", "127.0.0.1:1")...)
	require.Equal(t, doctor.Warning, found(t, all, "other node").Verdict)
	// etcd is not a node: it is reachable, but does not implement the protocol.
	all, code = diagnose(t, c, append(args, "--peer", etcd)...)
	require.Equal(t, cli.ExitError, code)
	require.Equal(t, doctor.Problem, found(t, all, "other node").Verdict)
	recordOfAnotherPair(t, c, etcd, args)
}

// recordOfAnotherPair runs the checks with a prefix without a record, and with the record of another pair.
func recordOfAnotherPair(t *testing.T, c clitest.CLI, etcd string, args []string) {
	t.Helper()
	all, code := diagnose(t, c, append(args, "--coordinator-etcd-prefix", "/lockstep/empty/")...)
	require.Equal(t, cli.ExitError, code)
	require.Contains(t, found(t, all, "pair").Do, "pair adopt")

	client, err := clientv3.New(clientv3.Config{Endpoints: []string{etcd}})
	require.NoError(t, err)
	defer func() { require.NoError(t, client.Close()) }()
	got, err := client.Get(t.Context(), "/lockstep/default/record")
	require.NoError(t, err)
	require.Len(t, got.Kvs, 1)
	var record map[string]any
	require.NoError(t, json.Unmarshal(got.Kvs[0].Value, &record))
	record["pair_id"] = uuid.NewString()
	foreign, err := json.Marshal(record)
	require.NoError(t, err)
	_, err = client.Put(t.Context(), "/lockstep/foreign/record", string(foreign))
	require.NoError(t, err)
	all, code = diagnose(t, c, append(args, "--coordinator-etcd-prefix", "/lockstep/foreign/")...)
	require.Equal(t, cli.ExitError, code)
	require.Contains(t, found(t, all, "pair").Meaning, "another pair")
	require.Contains(t, found(t, all, "other node").Meaning, "another pair")
	_, err = client.Put(t.Context(), "/lockstep/garbage/record", "garbage")
	require.NoError(t, err)
	all, code = diagnose(t, c, append(args, "--coordinator-etcd-prefix", "/lockstep/garbage/")...)
	require.Equal(t, cli.ExitError, code)
	require.Equal(t, doctor.Problem, found(t, all, "etcd, record").Verdict)
}

// The checks work with a raft quorum, before and after the other voters are started.
func TestVoters(t *testing.T) {
	c := clitest.CLI{T: t}
	all, _ := diagnose(t, c, "--data-dir", t.TempDir(), "--coordinator-type", "raft", "--coordinator-raft-listen",
		"127.0.0.1:2", "--coordinator-raft-voters", "127.0.0.1:2,127.0.0.1:3,127.0.0.1:4")
	require.Equal(t, doctor.Warning, found(t, all, "voters, 127.0.0.1:3").Verdict)
	require.Contains(t, found(t, all, "voters, quorum").Meaning, "two of")

	p, err := harness.Start(t.Context(), harness.Options{Dir: t.TempDir(), Raft: true, Settings: harness.SmallNodes()})
	require.NoError(t, err)
	defer func() { require.NoError(t, p.Close()) }()
	require.NoError(t, p.WaitReady(t.Context(), nil))
	n := p.Nodes[0]
	all, code := diagnose(t, c, "--data-dir", filepath.Join(n.Dir, "data"), "--listen", n.Address, "--coordinator-type",
		"raft", "--coordinator-raft-listen", p.VoterOf(n), "--coordinator-raft-voters", p.Voters())
	require.Equal(t, cli.ExitOK, code, "%+v", all)
	require.Equal(t, doctor.OK, found(t, all, "voters, quorum").Verdict)
	require.Contains(t, found(t, all, "voters, quorum").Measured, "3 voters")
}

// Errors in the settings are reported together with the checks that were skipped because of them.
func TestSettings(t *testing.T) {
	c := clitest.CLI{T: t}
	all, code := diagnose(t, c, "--listen", "nowhere", "--data-dir", t.TempDir())
	require.Equal(t, cli.ExitError, code)
	require.Contains(t, found(t, all, "settings").Measured, "nowhere")
	_, stderr, code := c.Run("", "doctor", "--listen", "nowhere")
	require.Equal(t, cli.ExitError, code)
	require.Contains(t, stderr, "1 problem")
	_, _, code = c.Run("", "doctor", "--config", filepath.Join(t.TempDir(), "none"))
	require.NotEqual(t, cli.ExitOK, code)
}

func names(t *testing.T, dir string) (all []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	for _, e := range entries {
		if !strings.Contains(e.Name(), "page.db_") { // a checkpoint may replace it
			all = append(all, e.Name())
		}
	}
	return all
}
