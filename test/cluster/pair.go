// SPDX-License-Identifier: Apache-2.0

//go:build unix

package cluster

import (
	"context"
	"errors"
	"maps"
	"net"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/lockstep-mq/lockstep/client"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/test/harness"
	"github.com/lockstep-mq/lockstep/test/harness/historycheck"
)

// pollInterval is the interval at which conditions are checked.
const pollInterval = harness.PollInterval

// ErrNotRunning is returned for an operation that requires a running node, such as a signal.
var ErrNotRunning = harness.ErrNotRunning

// Options configures a Pair.
type Options struct {
	// Binary is the lockstep executable, from Build.
	Binary string
	// Dir is the directory for configuration, data and logs of the nodes, and for etcd. It is not removed.
	Dir string
	// Settings are additional settings of both nodes, as in node.yaml, but with dotted keys: {"wal.keep-bytes":
	// "1MiB"}. An empty value removes a default of the pair.
	Settings map[string]string
	// NodeSettings are additional settings of a single node, by its name, "a" or "b".
	NodeSettings map[string]map[string]string
	// Links places a Proxy in front of each node for the traffic of the other node, as required by Cut. Clients of
	// NewClient and the connections of ConnTo bypass it. A killed node is detected later, because its proxy still
	// accepts connections.
	Links bool
	// Disk enables disk faults by Node.SetDisk. The binary must support them: see CanBreakDisks.
	Disk bool
	// Clock enables Node.SetClock for the nodes and the witness. The binary must support it: see CanSetClocks.
	Clock bool
	// EtcdBinary, if not empty, is a program built by BuildEtcdWithClock. It stores the cluster record instead of an etcd
	// in this process; see Pair.Etcd. It cannot be stopped and restarted.
	EtcdBinary string
	// Net runs each node in a separate network namespace. It is closed with the pair. It cannot be combined with
	// Links, Disk or Raft.
	Net *Net
	// Raft uses the nodes and a witness process as the coordinator, instead of etcd.
	Raft bool
	// WitnessFlags are additional flags of the witness, if Raft is set.
	WitnessFlags []string
	// Credentials secure the connections from clients and the Pair to the nodes. If nil, connections are not encrypted.
	// The credentials of the nodes are part of Settings.
	Credentials credentials.TransportCredentials
}

// Pair is a pair of the harness with injectable disk, clock and network faults.
type Pair struct {
	*harness.Pair
	// A and B are the nodes, regardless of their roles.
	A, B *Node
	// Witness is the third voter, if Options.Raft is set.
	Witness *Node
	// Etcd is the etcd process, if Options.EtcdBinary is set.
	Etcd *Etcd

	net   *Net
	opts  Options
	peers []*Node // created by Peer
}

// Start starts etcd or the witness, and both nodes. It does not wait until they are in sync; see WaitInSync. If it
// returns an error, no process is running.
func Start(ctx context.Context, o Options) (_ *Pair, err error) {
	p := &Pair{Pair: &harness.Pair{}, net: o.Net, opts: o}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.Close())
		}
	}()
	settings := map[string]string{
		"log.level": "debug",
		// The disk of the machine may be nearly full, and the tests do not fill it.
		"disk.low-watermark": "16MiB",
		"wal.segment-bytes":  "8MiB",
	}
	host := ""
	if o.Net != nil {
		host = o.Net.host()
		settings["insecure"] = "true" // only the test uses this network
	}
	maps.Copy(settings, o.Settings)
	etcd := ""
	if o.EtcdBinary != "" {
		if p.Etcd, err = startEtcd(ctx, o.EtcdBinary, filepath.Join(o.Dir, "etcd")); err != nil {
			return nil, err
		}
		etcd = p.Etcd.address
	}
	started, err := harness.Start(ctx, harness.Options{
		Binary: o.Binary, Dir: o.Dir, Settings: settings, NodeSettings: o.NodeSettings, ConfigFiles: true,
		Raft: o.Raft, Links: o.Links, EtcdLinks: !o.Raft, EtcdLinkHost: host,
		EtcdAddress: etcd, Credentials: o.Credentials, WitnessFlags: o.WitnessFlags,
		EtcdNoSync: true, // the tests assume that etcd's machine does not crash
		Placement:  p.place,
	})
	if err != nil {
		return nil, err
	}
	p.Pair = started
	p.A.Node, p.B.Node = started.Nodes[0], started.Nodes[1]
	if p.Witness != nil {
		p.Witness.Node = started.Witness
	}
	return p, nil
}

// place creates the Node of a process, and returns its placement: network, disk and clock.
func (p *Pair) place(name, dir string) (harness.Placement, error) {
	n := &Node{}
	switch {
	case name == "witness":
		p.Witness = n
	case p.A == nil:
		p.A = n
	case p.B == nil:
		p.B = n
	default:
		p.peers = append(p.peers, n)
	}
	at := harness.Placement{Environment: func() ([]string, error) { return n.environment(name) }}
	if p.net != nil {
		at.Address, at.Command = p.net.address(name), p.net.command(name)
	}
	var err error
	if p.opts.Disk && n != p.Witness {
		if n.disk, err = harness.ReservePort(); err != nil {
			return at, err
		}
	}
	if p.opts.Clock {
		n.clock, err = newClock(dir)
	}
	return at, err
}

func (p *Pair) of(n *harness.Node) *Node {
	if n == p.A.Node {
		return p.A
	}
	return p.B
}

// Command runs the lockstep command line, and returns its output.
func (p *Pair) Command(ctx context.Context, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, p.opts.Binary, args...)
	cmd.Env = harness.Environment()
	return cmd.CombinedOutput()
}

// VoterOf returns the address of a node's voter, if Options.Raft is set.
func (p *Pair) VoterOf(n *Node) string { return p.Pair.VoterOf(n.Node) }

// Peer creates a third node with the name and the settings of the node like, for a copy of that node's data
// directory. The third node is not started, and is closed with the pair. Its directory is next to those of the pair;
// DataDir does not exist yet. Peer does not support Options.Links or Raft.
func (p *Pair) Peer(like *Node, dir string) (*Node, error) {
	disk := p.opts.Disk
	p.opts.Disk = false
	defer func() { p.opts.Disk = disk }()
	made, err := p.Pair.Peer(like.Node, dir)
	if err != nil {
		return nil, err
	}
	n := p.peers[len(p.peers)-1]
	n.Node = made
	return n, nil
}

// Nodes returns A and B.
func (p *Pair) Nodes() []*Node { return []*Node{p.A, p.B} }

// Other returns the node that is not n.
func (p *Pair) Other(n *Node) *Node {
	if n == p.A {
		return p.B
	}
	return p.A
}

// NewClient creates a client that bypasses the links between the nodes, so that Cut does not affect it. The caller
// closes it.
func (p *Pair) NewClient(ctx context.Context, more ...grpc.DialOption) (*client.Client, error) {
	return client.OpenWith(ctx, client.Options{
		Addresses: p.Addresses(), DialOptions: slices.Concat(more, p.DialOptions(), p.secured()),
	})
}

func (p *Pair) secured() []grpc.DialOption {
	if p.opts.Credentials == nil {
		return nil
	}
	return []grpc.DialOption{grpc.WithTransportCredentials(p.opts.Credentials)}
}

// NewClientOf creates a client that reaches only the node at the given address. The caller closes it.
func (p *Pair) NewClientOf(ctx context.Context, address string) (*client.Client, error) {
	dial := func(ctx context.Context, to string) (net.Conn, error) {
		if p.BypassLink(to) != address {
			return nil, &net.OpError{Op: "dial", Net: "tcp", Err: syscall.EHOSTUNREACH}
		}
		return p.Dial(ctx, to)
	}
	return client.OpenWith(ctx, client.Options{
		Addresses:   []string{address},
		DialOptions: append(p.secured(), grpc.WithContextDialer(dial)),
	})
}

// ConnTo returns a connection to the node with the given address. The address of the link in front of the node is
// also accepted.
func (p *Pair) ConnTo(address string) *grpc.ClientConn { return p.Find(address).Conn() }

// CutFrom holds traffic from a node to the other node, on any connection. Traffic in the opposite direction is not
// affected.
func (p *Pair) CutFrom(n *Node) { p.Pair.CutFrom(n.Node) }

// CutFromEtcd holds all traffic between n and etcd.
func (p *Pair) CutFromEtcd(n *Node) { p.Pair.CutFromEtcd(n.Node) }

// HealToEtcd ends CutFromEtcd, and delivers the held traffic.
func (p *Pair) HealToEtcd(n *Node) { p.Pair.HealToEtcd(n.Node) }

// WaitActive waits for an active node. If both nodes report that role, it returns the node with the higher term.
func (p *Pair) WaitActive(ctx context.Context) (*Node, error) {
	n, err := p.Pair.WaitActive(ctx)
	if err != nil {
		return nil, err
	}
	return p.of(n), nil
}

// WaitInSync waits until one node is active, the other node is its standby, and both report these roles.
func (p *Pair) WaitInSync(ctx context.Context) (active, standby *Node, err error) {
	a, s, err := p.Pair.WaitInSync(ctx)
	if err != nil {
		return nil, nil, err
	}
	return p.of(a), p.of(s), nil
}

// WaitRole waits until n has one of the roles.
func (p *Pair) WaitRole(ctx context.Context, n *Node, roles ...pb.Role) error {
	return p.Pair.WaitRole(ctx, n.Node, roles...)
}

// Wait waits until holds returns true for the statuses of A and B. A status is nil if the node does not respond. label
// is part of the error.
func (p *Pair) Wait(ctx context.Context, label string, holds func(a, b *pb.GetStatusResponse) bool) error {
	return p.Pair.Wait(ctx, label, func(s []*pb.GetStatusResponse) bool { return holds(s[0], s[1]) })
}

// Digests returns the digests of both nodes at the same record. No client may publish concurrently. Internal changes
// may still occur, such as requeuing the messages of a lost consumer.
func (p *Pair) Digests(ctx context.Context) ([]historycheck.Digest, error) {
	both, err := p.Pair.Digests(ctx)
	if err != nil {
		return nil, err
	}
	out := make([]historycheck.Digest, len(both))
	for i, d := range both {
		out[i] = historycheck.Digest{
			Node: p.Nodes()[i].Name, LSN: d.GetLsn(), Content: d.GetContent(), Messages: d.GetMessages(),
		}
	}
	return out, nil
}

// Close kills running processes and releases the ports. The directory remains.
func (p *Pair) Close() error {
	errs := []error{p.KillAll()}
	for _, n := range slices.Concat([]*Node{p.A, p.B}, p.peers) {
		if n != nil && n.disk != nil {
			errs = append(errs, n.disk.Close())
		}
	}
	if p.net != nil {
		errs = append(errs, p.net.Close())
	}
	if p.Etcd != nil {
		errs = append(errs, p.Etcd.close())
	}
	return errors.Join(errs...)
}
