// SPDX-License-Identifier: Apache-2.0

//go:build unix

package cluster

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"google.golang.org/grpc"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/cmd/lockstep/harness"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// pollInterval is how often a condition of a pair is looked at.
const pollInterval = 5 * time.Millisecond

// statusBound is how long one node gets to answer; a paused one never does.
const statusBound = time.Second

// Options of a Pair.
type Options struct {
	// Binary is the lockstep executable, from Build.
	Binary string
	// Dir holds everything: configuration, data and logs of the nodes, and etcd. It is not removed.
	Dir string
	// Settings are more settings of both nodes, as in node.yaml but with dotted keys: {"wal.keep-bytes": "1MiB"}.
	// An empty value takes away one that the pair would have by default.
	Settings map[string]string
	// NodeSettings are further ones of one node, by its name, "a" or "b".
	NodeSettings map[string]map[string]string
	// Links puts a Proxy before each node for the traffic of the other node, so that Cut can be used. Clients of
	// NewClient and the nodes' own connections pass by it. A killed node is then noticed later: its proxy still accepts
	// connections.
	Links bool
	// Disk lets the disks of the nodes be broken, by Node.SetDisk. The binary must have been built for it: see
	// CanBreakDisks.
	Disk bool
	// Clock lets the clocks of the nodes, the witness and etcd be set, by Node.SetClock. The binary must have been
	// built for it: see CanSetClocks.
	Clock bool
	// Net has each node run in a network of its own; it is closed with the pair. Not together with Links, Disk and
	// Raft.
	Net *Net
	// Raft has the nodes and a witness process hold the record, instead of etcd.
	Raft bool
}

// Pair is two nodes and their etcd, or their witness.
type Pair struct {
	// A and B are the nodes, whatever their roles.
	A, B *Node
	// Links to A and B, if Options.Links.
	LinkA, LinkB *Proxy
	// Witness is the third voter, if Options.Raft; it serves this pair only.
	Witness *Node

	voters []*harness.Port // of the nodes' own voters, if Options.Raft
	net    *Net
	opts   Options
	beside []*Node // more nodes, with their links to etcd
	toEtcd []*Proxy

	etcd *etcdServer
	// coordinator links of A and B: etcd comes back on another port, and each node can be cut off from it.
	etcdA, etcdB *Proxy
}

// Start starts etcd and both nodes. It does not wait for them: see WaitInSync. On an error nothing is left running.
func Start(ctx context.Context, o Options) (_ *Pair, err error) {
	p := &Pair{net: o.Net, opts: o}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.Close())
		}
	}()
	if o.Raft {
		err = p.startWitness(o)
	} else {
		p.etcd, err = startEtcd(ctx, filepath.Join(o.Dir, "etcd"))
	}
	if err != nil {
		return nil, err
	}
	if p.A, p.LinkA, p.etcdA, err = p.prepare("a", "a", o); err != nil {
		return nil, err
	}
	if p.B, p.LinkB, p.etcdB, err = p.prepare("b", "b", o); err != nil {
		return nil, err
	}
	if err := p.A.Start(); err != nil {
		return nil, err
	}
	return p, p.B.Start()
}

// startWitness reserves the ports of the three voters and starts the witness.
func (p *Pair) startWitness(o Options) error {
	for range 2 {
		port, err := harness.ReservePort()
		if err != nil {
			return err
		}
		p.voters = append(p.voters, port)
	}
	w, err := newNode("witness", filepath.Join(o.Dir, "witness"), o.Binary, nil, func(string) string { return "" })
	if err != nil {
		return err
	}
	p.Witness = w
	if o.Clock {
		if w.clock, err = newClock(w.Dir); err != nil {
			return err
		}
	}
	w.args = []string{
		"witness", "--data-dir", w.DataDir(), "--listen", w.Address(), "--voters", p.voterAddresses(),
		"--log-level", "debug",
	}
	return w.Start()
}

// Voters are the addresses of the three voters, comma-separated.
func (p *Pair) Voters() string { return p.voterAddresses() }

// Command runs the lockstep command line and returns what it printed.
func (p *Pair) Command(ctx context.Context, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, p.A.binary, args...)
	cmd.Env = environment()
	return cmd.CombinedOutput()
}

// VoterOf gives the address of a node's own voter, if Options.Raft.
func (p *Pair) VoterOf(n *Node) string {
	if n == p.A {
		return p.voters[0].Address()
	}
	return p.voters[1].Address()
}

// voterAddresses are those of the nodes' voters and of the witness.
func (p *Pair) voterAddresses() string {
	return strings.Join([]string{p.voters[0].Address(), p.voters[1].Address(), p.Witness.Address()}, ",")
}

// Beside makes a third node that is not started, with the name and the settings of another one, in a directory of its
// own beside those of the pair: for a copy of the other one's data directory. Its DataDir is not there yet. It is
// closed with the pair. Not with Options.Links or Raft.
func (p *Pair) Beside(like *Node, dir string) (*Node, error) {
	o := p.opts
	o.Links, o.Disk = false, false
	n, _, toEtcd, err := p.prepare(like.Name, dir, o)
	if err != nil {
		return nil, err
	}
	p.beside, p.toEtcd = append(p.beside, n), append(p.toEtcd, toEtcd)
	return n, nil
}

// prepare makes a node that is not started, with its links.
func (p *Pair) prepare(name, dirName string, o Options) (n *Node, link, toEtcd *Proxy, err error) {
	if p.etcd != nil {
		host := "127.0.0.1"
		if o.Net != nil {
			host = o.Net.host()
		}
		if toEtcd, err = NewProxyOn(host, p.etcd.address()); err != nil {
			return nil, nil, nil, err
		}
	}
	if o.Links {
		// The target is known when the node has its port, before the first connection.
		if link, err = NewProxy(""); err != nil {
			return nil, nil, toEtcd, err
		}
	}
	dir := filepath.Join(o.Dir, dirName)
	config := func(listen string) string {
		advertise := listen
		if link != nil {
			link.SetTarget(listen)
			advertise = link.Address()
		}
		settings := map[string]string{
			"node.name": name,
			"data.dir":  filepath.Join(dir, "data"),
			"listen":    listen,
			"advertise": advertise,
			"log.level": "debug",
			// The tests fill no disk, and the machine's may be nearly full.
			"disk.low-watermark": "16MiB",
			"wal.segment-bytes":  "8MiB",
		}
		if p.Witness != nil {
			settings["coordinator.type"] = "raft"
			settings["coordinator.raft.listen"] = p.voters[int(name[0]-'a')].Address()
			settings["coordinator.raft.voters"] = p.voterAddresses()
		} else {
			settings["coordinator.etcd.endpoints"] = toEtcd.Address()
		}
		maps.Copy(settings, o.Settings)
		maps.Copy(settings, o.NodeSettings[name])
		maps.DeleteFunc(settings, func(_, value string) bool { return value == "" })
		return yaml(settings)
	}
	n, err = newNode(name, dir, o.Binary, o.Net, config)
	if err == nil && o.Disk {
		n.disk, err = harness.ReservePort()
	}
	if err == nil && o.Clock {
		n.clock, err = newClock(dir)
	}
	return n, link, toEtcd, err
}

// yaml writes dotted keys as nested groups.
func yaml(settings map[string]string) string {
	keys := make([]string, 0, len(settings))
	for k := range settings {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	var b strings.Builder
	var open []string
	for _, k := range keys {
		path := strings.Split(k, ".")
		common := 0
		for common < len(path)-1 && common < len(open) && path[common] == open[common] {
			common++
		}
		for depth := common; depth < len(path)-1; depth++ {
			fmt.Fprintf(&b, "%s%s:\n", strings.Repeat("  ", depth), path[depth])
		}
		open = path[:len(path)-1]
		fmt.Fprintf(&b, "%s%s: %q\n", strings.Repeat("  ", len(path)-1), path[len(path)-1], settings[k])
	}
	return b.String()
}

// Nodes gives both.
func (p *Pair) Nodes() []*Node { return []*Node{p.A, p.B} }

// Other gives the node that is not n.
func (p *Pair) Other(n *Node) *Node {
	if n == p.A {
		return p.B
	}
	return p.A
}

// Addresses of both nodes, as clients are to use them.
func (p *Pair) Addresses() []string { return []string{p.A.Address(), p.B.Address()} }

// NewClient opens a client that passes by the links between the nodes: Cut does not concern it.
func (p *Pair) NewClient(ctx context.Context) (*client.Client, error) {
	return client.Open(ctx, client.Options{
		Addresses:   p.Addresses(),
		DialOptions: []grpc.DialOption{grpc.WithContextDialer(p.dialPastLinks)},
	})
}

// NewClientOf opens a client that reaches one node only.
func (p *Pair) NewClientOf(ctx context.Context, address string) (*client.Client, error) {
	dial := func(ctx context.Context, to string) (net.Conn, error) {
		if p.pastLink(to) != address {
			return nil, &net.OpError{Op: "dial", Net: "tcp", Err: syscall.EHOSTUNREACH}
		}
		return p.dialPastLinks(ctx, to)
	}
	return client.Open(ctx, client.Options{
		Addresses: []string{address}, DialOptions: []grpc.DialOption{grpc.WithContextDialer(dial)},
	})
}

// ConnTo is a connection to the very node at an address: its own, or that of the link before it.
func (p *Pair) ConnTo(address string) *grpc.ClientConn {
	if address == p.B.Address() || (p.LinkB != nil && address == p.LinkB.Address()) {
		return p.B.Conn()
	}
	return p.A.Conn()
}

// dialPastLinks connects to the node itself where a hint names its link.
func (p *Pair) dialPastLinks(ctx context.Context, address string) (net.Conn, error) {
	var d net.Dialer
	return d.DialContext(ctx, "tcp", p.pastLink(address))
}

// pastLink is the address of the node itself where one names its link.
func (p *Pair) pastLink(address string) string {
	switch {
	case p.LinkA != nil && address == p.LinkA.Address():
		return p.A.Address()
	case p.LinkB != nil && address == p.LinkB.Address():
		return p.B.Address()
	default:
		return address
	}
}

// Cut makes the network between the two nodes silent, in both directions.
func (p *Pair) Cut() {
	p.LinkA.Cut()
	p.LinkB.Cut()
}

// Heal undoes Cut.
func (p *Pair) Heal() {
	p.LinkA.Heal()
	p.LinkB.Heal()
}

// CutFrom makes what a node sends to the other one, on any connection, not arrive; the other way works.
func (p *Pair) CutFrom(n *Node) {
	own, other := p.LinkA, p.LinkB
	if n == p.B {
		own, other = other, own
	}
	own.CutOneWay(FromTarget)
	other.CutOneWay(ToTarget)
}

// LoseCut undoes Cut, but what was held back is lost, with its connections.
func (p *Pair) LoseCut() {
	p.LinkA.Reset()
	p.LinkB.Reset()
	p.Heal()
}

// Held is how often cuts of all links have held something back: whether one has struck shows here.
func (p *Pair) Held() (n uint64) {
	for _, x := range append([]*Proxy{p.LinkA, p.LinkB, p.etcdA, p.etcdB}, p.toEtcd...) {
		if x != nil {
			n += x.Held()
		}
	}
	return n
}

// CutFromEtcd makes the network between n and etcd silent.
func (p *Pair) CutFromEtcd(n *Node) { p.etcdLink(n).Cut() }

// HealToEtcd undoes CutFromEtcd.
func (p *Pair) HealToEtcd(n *Node) { p.etcdLink(n).Heal() }

func (p *Pair) etcdLink(n *Node) *Proxy {
	if n == p.A {
		return p.etcdA
	}
	return p.etcdB
}

// StopEtcd ends etcd; its data stays.
func (p *Pair) StopEtcd() error { return p.etcd.stop() }

// StartEtcd starts etcd again over its data.
func (p *Pair) StartEtcd(ctx context.Context) error {
	if err := p.etcd.start(ctx); err != nil {
		return err
	}
	for _, x := range append([]*Proxy{p.etcdA, p.etcdB}, p.toEtcd...) {
		x.SetTarget(p.etcd.address())
	}
	return nil
}

// statuses asks both nodes at once; nil for one that does not answer.
func (p *Pair) statuses(ctx context.Context) [2]*pb.GetStatusResponse {
	ctx, cancel := context.WithTimeout(ctx, statusBound)
	defer cancel()
	var out [2]*pb.GetStatusResponse
	var wg sync.WaitGroup
	for i, n := range p.Nodes() {
		wg.Go(func() {
			if s, err := n.Status(ctx); err == nil {
				out[i] = s
			}
		})
	}
	wg.Wait()
	return out
}

// serves tells whether a node in this role acknowledges.
func serves(s *pb.GetStatusResponse) bool {
	return s.GetRole() == pb.Role_ROLE_ACTIVE || s.GetRole() == pb.Role_ROLE_ACTIVE_ALONE
}

// WaitActive waits for a node that says that it serves clients. If more than one says so (one of them does not know yet
// that it was replaced), it is the one with the higher term.
func (p *Pair) WaitActive(ctx context.Context) (*Node, error) {
	var found *Node
	err := p.wait(ctx, "an active node", func(s [2]*pb.GetStatusResponse) bool {
		var term uint64
		found = nil
		for i, n := range p.Nodes() {
			if serves(s[i]) && (found == nil || s[i].GetPair().GetTerm() > term) {
				found, term = n, s[i].GetPair().GetTerm()
			}
		}
		return found != nil
	})
	return found, err
}

// WaitInSync waits until one node is active, the other one is its standby, and both know it.
func (p *Pair) WaitInSync(ctx context.Context) (active, standby *Node, err error) {
	err = p.wait(ctx, "a pair in sync", func(s [2]*pb.GetStatusResponse) bool {
		for i, n := range p.Nodes() {
			if s[i].GetRole() == pb.Role_ROLE_ACTIVE && s[1-i].GetRole() == pb.Role_ROLE_STANDBY &&
				s[i].GetPair().GetConfig() == s[1-i].GetPair().GetConfig() {
				active, standby = n, p.Other(n)
				return true
			}
		}
		return false
	})
	return active, standby, err
}

// WaitRole waits until n has one of the roles.
func (p *Pair) WaitRole(ctx context.Context, n *Node, roles ...pb.Role) error {
	return p.wait(ctx, fmt.Sprintf("%s in role %v", n.Name, roles), func(s [2]*pb.GetStatusResponse) bool {
		i := slices.Index(p.Nodes(), n)
		return s[i] != nil && slices.Contains(roles, s[i].GetRole())
	})
}

// Wait waits until the condition over the statuses of A and B holds; nil stands for a node that does not answer. what
// is for the error: "waited for <what>".
func (p *Pair) Wait(ctx context.Context, what string, holds func(a, b *pb.GetStatusResponse) bool) error {
	return p.wait(ctx, what, func(s [2]*pb.GetStatusResponse) bool { return holds(s[0], s[1]) })
}

// wait looks until the condition holds; the error tells what was seen last.
func (p *Pair) wait(ctx context.Context, what string, holds func([2]*pb.GetStatusResponse) bool) error {
	ticker := time.NewTicker(pollInterval)
	defer ticker.Stop()
	var last [2]*pb.GetStatusResponse
	for {
		s := p.statuses(ctx)
		if holds(s) {
			return nil
		}
		if ctx.Err() == nil {
			last = s
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waited for %s: %w; a: %s; b: %s", what, ctx.Err(), describe(last[0]), describe(last[1]))
		case <-ticker.C:
		}
	}
}

func describe(s *pb.GetStatusResponse) string {
	if s == nil {
		return "no answer"
	}
	return fmt.Sprintf("%v (%s) term %d config %d log %d durable %d commit %d applied %d", s.GetRole(), s.GetReason(),
		s.GetPair().GetTerm(),
		s.GetPair().GetConfig(), s.GetStore().GetLogEnd().GetLsn(), s.GetStore().GetLogDurable().GetLsn(),
		s.GetStore().GetCommitLsn(),
		s.GetStore().GetAppliedLsn())
}

// WaitApplied waits until both nodes have applied the same last record; no client may be publishing.
func (p *Pair) WaitApplied(ctx context.Context) error {
	return p.wait(ctx, "both nodes at the same LSN", func(s [2]*pb.GetStatusResponse) bool {
		a, b := s[0].GetStore(), s[1].GetStore()
		return a != nil && b != nil && a.GetAppliedLsn() == b.GetAppliedLsn() &&
			a.GetAppliedLsn() == a.GetLogEnd().GetLsn() && b.GetAppliedLsn() == b.GetLogEnd().GetLsn()
	})
}

// Digests reads what each node holds, at the same record: no client may be publishing, but what a node does by itself,
// such as giving back the messages of a consumer that has gone, may still come.
func (p *Pair) Digests(ctx context.Context) ([]Digest, error) {
	for {
		if err := p.WaitApplied(ctx); err != nil {
			return nil, err
		}
		var digests []Digest
		for _, n := range p.Nodes() {
			d, err := n.Digest(ctx)
			if err != nil {
				return nil, err
			}
			digests = append(digests, d)
		}
		if digests[0].LSN == digests[1].LSN {
			return digests, nil
		}
	}
}

// Close kills what still runs and gives the ports back. The directory stays.
func (p *Pair) Close() error {
	var errs []error
	for _, n := range append(append(p.Nodes(), p.Witness), p.beside...) {
		if n != nil {
			errs = append(errs, n.close())
		}
	}
	for _, port := range p.voters {
		errs = append(errs, port.Close())
	}
	for _, x := range append([]*Proxy{p.LinkA, p.LinkB, p.etcdA, p.etcdB}, p.toEtcd...) {
		if x != nil {
			errs = append(errs, x.Close())
		}
	}
	if p.etcd != nil {
		errs = append(errs, p.etcd.stop())
	}
	if p.net != nil {
		errs = append(errs, p.net.Close())
	}
	return errors.Join(errs...)
}

// environment is ours without what configures tests or other nodes.
func environment() []string {
	return slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "LOCKSTEP_") })
}
