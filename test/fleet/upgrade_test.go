// SPDX-License-Identifier: Apache-2.0

//go:build unix && deep

package fleet

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/test/harness"
	"github.com/lockstep-mq/lockstep/test/vfs/faultdisk"
)

const (
	// previousFleet is the revision from which the fleet is upgraded. The last release has no fleets. Replace it with the
	// revision in deploy/release when that has them.
	previousFleet   = "fb566e738ce74a6a27b82f4402bd455542e183fe"
	previousVersion = "0.0.1-previous"
	firstMessages   = 2_000 // in each queue, before the upgrade
)

// buildPrevious builds the previous revision from the history of the repository.
func buildPrevious(t *testing.T) string {
	t.Helper()
	revision := previousFleet
	if text := os.Getenv("LOCKSTEP_FLEET_PREVIOUS"); text != "" {
		if filepath.IsAbs(text) {
			return text
		}
		revision = text
	}
	run := func(dir string, command ...string) (string, error) {
		cmd := exec.CommandContext(t.Context(), command[0], command[1:]...)
		cmd.Dir = dir
		out, err := cmd.CombinedOutput()
		return strings.TrimSpace(string(out)), err
	}
	root, err := run("", "git", "rev-parse", "--show-toplevel")
	require.NoError(t, err, "the sources are not in a git repository, so the previous revision cannot be built: %s", root)
	out, err := run(root, "git", "cat-file", "-e", revision+"^{commit}")
	require.NoError(t, err, "this clone lacks revision %s: fetch the whole history: %s", revision, out)
	dir := t.TempDir()
	src, archive, program := filepath.Join(dir, "src"), filepath.Join(dir, "src.tar"), filepath.Join(dir, "lockstep")
	require.NoError(t, os.Mkdir(src, 0o700))
	for _, command := range [][]string{
		{"git", "archive", "--format=tar", "-o", archive, revision},
		{"tar", "-xf", archive, "-C", src},
	} {
		out, err := run(root, command...)
		require.NoError(t, err, out)
	}
	out, err = run(src, "go", "build", "-buildvcs=false", "-tags", faultdisk.Tag, "-ldflags",
		"-X main.version="+previousVersion, "-o", program, "./cmd/lockstep")
	require.NoError(t, err, out)
	return program
}

// install replaces a program. Running processes keep the former one.
func install(t *testing.T, from, to string) {
	t.Helper()
	src, err := os.Open(from)
	require.NoError(t, err)
	defer func() { _ = src.Close() }()
	dst, err := os.OpenFile(to+".new", os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o755)
	require.NoError(t, err)
	_, err = io.Copy(dst, src)
	require.NoError(t, errors.Join(err, dst.Close(), os.Rename(to+".new", to)))
}

// versionOf returns the release of a program.
func versionOf(t *testing.T, program string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), program, "version", "--output", "json").Output()
	require.NoError(t, err)
	var v struct{ Version string }
	require.NoError(t, json.Unmarshal(out, &v))
	return v.Version
}

// cli runs a command of the new release with the addresses of all nodes.
func (w *world) cli(args ...string) (stdout string, _ error) {
	w.t.Helper()
	var addresses []string
	for _, p := range w.pairs {
		addresses = append(addresses, p.Addresses()...)
	}
	cmd := exec.CommandContext(limited(w.t), binary, append([]string{"--addr", strings.Join(addresses, ",")}, args...)...)
	cmd.Env = harness.Environment()
	var out, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &stderr
	err := cmd.Run()
	if err != nil {
		w.t.Logf("%s: %v: %s", strings.Join(args, " "), err, stderr.String())
	}
	return strings.TrimSpace(out.String()), err
}

// survey is the output of lockstep fleet upgrade.
type survey struct {
	Nodes []struct {
		Pair, Address, Version string
		Upgraded               bool
	}
	Action, Pair, Address string
	Ready                 bool
}

func (w *world) survey(version string) (s survey, err error) {
	w.t.Helper()
	out, err := w.cli("fleet", "upgrade", "--version", version, "--output", "json")
	require.NoError(w.t, json.Unmarshal([]byte(out), &s), out)
	return s, err
}

// node returns the node with an address, and its pair.
func (w *world) node(address string) (*pair, *harness.Node) {
	w.t.Helper()
	for _, p := range w.pairs {
		if n := p.Find(address); n != nil {
			return p, n
		}
	}
	require.FailNow(w.t, "no node has the address "+address)
	return nil, nil
}

// beginStopped begins a move of a queue to a pair, and waits until it is stopped before the copy.
func (w *world) beginStopped(queue string, to *pair) (epoch uint64) {
	w.t.Helper()
	require.NoError(w.t, to.stop("copy"))
	epoch = w.begin(queue, to)
	eventually(w.t, "a stopped move", func(context.Context) bool { return to.reached("copy") })
	return epoch
}

// releaseMoved continues a stopped move, and waits until the target owns the queue.
func (w *world) releaseMoved(queue string, to *pair, epoch uint64) {
	w.t.Helper()
	require.NoError(w.t, to.release("copy"))
	last := w.ended(to, epoch)
	require.Empty(w.t, last.GetError())
	owner, _ := w.owner(queue)
	require.Equal(w.t, to.name, owner.name)
}

// switchOver makes the standby of a pair active.
func (w *world) switchOver(p *pair) {
	w.t.Helper()
	active, standby, err := p.WaitInSync(limited(w.t))
	require.NoError(w.t, err)
	_, err = pb.NewAdminServiceClient(active.Conn()).Switchover(limited(w.t), &pb.SwitchoverRequest{})
	require.NoError(w.t, err)
	now, _, err := p.WaitInSync(limited(w.t))
	require.NoError(w.t, err)
	require.Equal(w.t, standby.Name, now.Name)
}

// A fleet of the previous release is upgraded under load with `lockstep fleet upgrade`, one node at a time. Queues move
// while releases are mixed: between pairs of different releases, while a standby is restarted, and while the new
// release takes over from the previous one. Nothing is lost, doubled or reordered, and no publish fails.
func TestUpgrade(t *testing.T) {
	previous, version := buildPrevious(t), versionOf(t, binary)
	old := versionOf(t, previous)
	require.NotEqual(t, old, version)
	program := filepath.Join(t.TempDir(), "lockstep")
	install(t, previous, program)
	w := newWorldOf(t, program)
	queues := []string{"orders", "events"}
	c := w.client(w.pairs[0])
	w.create(c, queues...)
	golang := newGoProducer(w, c, firstMessages*len(queues), queues...)
	w.round.Add(1) // nodes are restarted, and queues move, at any time
	co := newGoConsumer(w, w.client(w.pairs[2]), queues...)
	logs := newLogs(w)
	continued := func() {
		w.inSync()
		golang.continued(time.Now())
		for _, q := range queues {
			co.deliveries(q).check()
		}
		logs.read()
	}
	continued()

	// The first step waits for the end of a move.
	from, _ := w.owner("orders")
	to := w.others(from.name)[0]
	epoch := w.beginStopped("orders", to)
	s, err := w.survey(version)
	require.Error(t, err)
	require.False(t, s.Ready)
	require.Equal(t, "upgrade", s.Action)
	require.Len(t, s.Nodes, len(w.pairs)*2)
	for _, n := range s.Nodes {
		require.Equal(t, old, n.Version, n.Address)
		require.False(t, n.Upgraded, n.Address)
	}
	w.releaseMoved("orders", to, epoch)

	install(t, binary, program)
	var order []string
	moves := 1
	for address := ""; ; {
		address, err = w.cli("fleet", "upgrade", "--version", version, "--next", "--wait", "--switchover", "--after", address)
		require.NoError(t, err)
		if address == "" {
			break
		}
		p, n := w.node(address)
		order = append(order, p.name)
		t.Logf("upgrade of node %s of pair %s", n.Name, p.name)
		_, standby, err := p.WaitInSync(limited(t))
		require.NoError(t, err)
		require.Equal(t, standby.Name, n.Name, "an active node would be restarted")

		// A move is in progress while the node is restarted, to its pair or from it.
		queue := queues[len(order)%len(queues)]
		to := p
		if from, _ := w.owner(queue); from == p {
			to = w.others(p.name)[len(order)%2]
		}
		epoch := w.beginStopped(queue, to)
		require.NoError(t, n.Stop())
		require.NoError(t, n.Start())
		w.inSync()
		if len(order)%4 == 1 { // otherwise, --switchover does it
			w.switchOver(p)
		}
		w.releaseMoved(queue, to, epoch)
		moves++
		continued()
	}
	require.Len(t, order, len(w.pairs)*2)
	for i := range w.pairs {
		require.Equal(t, order[2*i], order[2*i+1], "pairs are upgraded one after the other: %v", order)
	}
	s, err = w.survey(version)
	require.NoError(t, err)
	require.Equal(t, "none", s.Action)
	for _, n := range s.Nodes {
		require.Equal(t, version, n.Version, n.Address)
	}
	_, err = w.cli("fleet", "status")
	require.NoError(t, err)
	w.finishUpgrade(golang, co, logs, moves)
}

// finishUpgrade stops the load, and verifies all queues.
func (w *world) finishUpgrade(golang *goProducer, co *goConsumer, logs *logs, moves int) {
	t := w.t
	t.Helper()
	golang.finish()
	owners := map[string]string{}
	c := w.client(w.pairs[1])
	for q, d := range co.all {
		d.finish(c, len(golang.confirmed(q)))
		owner, _ := w.owner(q)
		owners[q] = owner.name
	}
	co.stop()
	for q := range co.all {
		verify(t, c, q, []producer{golang}, []consumer{co})
	}
	w.equal(owners)
	require.Equal(t, moves, checkOwners(w, logs, owners, []producer{golang}))
}
