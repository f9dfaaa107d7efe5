// SPDX-License-Identifier: Apache-2.0

// Package harness runs a pair as processes on one machine, with an etcd in this process, and injects faults.
// `lockstep demo`, `dev` and `bench` use it, and tests, many of them through test/cluster. On Linux, the nodes exit
// when this process exits for any reason.
package harness

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"google.golang.org/grpc/credentials"

	"github.com/lockstep-mq/lockstep/failover/coordinator/etcd/embedded"
	"github.com/lockstep-mq/lockstep/store/vfs"
	"github.com/lockstep-mq/lockstep/test/harness/faultproxy"
)

// Options configures Start.
type Options struct {
	// Binary is the path of the lockstep executable. Default: this program.
	Binary string
	// Dir is the directory of all data. It contains a directory per node, with data and log, and one for etcd or the
	// witness. It is not removed.
	Dir string
	// Listen are the listen addresses of the nodes, as host:port. If an address is empty, the node listens on a free
	// port of 127.0.0.1.
	Listen [2]string
	// Standalone runs a single node without a coordinator.
	Standalone bool
	// Raft stores the cluster record in a raft quorum of the nodes and a witness process, instead of etcd.
	Raft bool
	// Settings are the settings of all nodes, by dotted key ("wal.keep-bytes"). NodeSettings are additional settings of a
	// single node, by its name, "a" or "b". An empty value removes a default of the pair.
	Settings     map[string]string
	NodeSettings map[string]map[string]string
	// ConfigFiles passes the settings to each node in a file, which the caller may change between two starts. Otherwise,
	// they are passed as flags.
	ConfigFiles bool

	// Links adds a relay in front of each node for the traffic of the other node, which enables Cut. Clients with
	// DialOptions and the connections of Node bypass the relay. A killed node is detected later, because its relay still
	// accepts connections.
	Links bool
	// EtcdLinks adds a relay between each node and etcd, which enables CutFromEtcd, StopEtcd and StartEtcd. It cannot be
	// combined with Raft or Standalone. The relays listen on EtcdLinkHost, an address of this machine; default
	// 127.0.0.1.
	EtcdLinks    bool
	EtcdLinkHost string
	// EtcdAddress, if not empty, is the host:port of an external etcd, which is used instead of an etcd in this process.
	// StopEtcd and StartEtcd do not affect it.
	EtcdAddress string
	// EtcdNoSync disables the syncs of etcd. A crash of the machine can then lose the cluster record.
	EtcdNoSync bool
	// WitnessFlags are additional flags of the witness, such as "--raft-ca=ca.pem", if Raft is set.
	WitnessFlags []string
	// Credentials secure the connections to the nodes. If nil, they are not encrypted. The credentials of the nodes are
	// part of Settings.
	Credentials credentials.TransportCredentials
	// AFirst starts node b only when node a serves, so that the pair keeps the data of a.
	AFirst bool
	// Placement, if not nil, returns the placement of the process with the given name ("a", "b" or "witness") and
	// directory.
	Placement func(name, dir string) (Placement, error)
}

// Pair is one or two nodes, and their etcd or witness.
type Pair struct {
	// Nodes are the nodes "a" and "b", in this order, regardless of their roles.
	Nodes []*Node
	// Witness is the third voter; nil without Options.Raft.
	Witness *Node

	o      Options
	lock   io.Closer // of Options.Dir
	etcd   *etcdServer
	voters []*Port // ports of the nodes' voters, with raft
	peers  []*Node // created by Peer
}

// Start starts the coordinator, if any, and the nodes. It does not wait until the nodes serve (see WaitReady), except
// for node a with Options.AFirst. If it returns an error, no process is running.
func Start(ctx context.Context, o Options) (_ *Pair, err error) {
	p := &Pair{o: o}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.Close())
		}
	}()
	if err := p.lockDir(); err != nil {
		return nil, err
	}
	for _, address := range o.Listen {
		if err := checkListen(ctx, address); err != nil {
			return nil, err
		}
	}
	if p.o.Binary == "" {
		if p.o.Binary, err = os.Executable(); err != nil {
			return nil, fmt.Errorf("find the path of this program: %w", err)
		}
	}
	switch {
	case (o.Standalone || o.Raft) && o.EtcdLinks:
		return nil, errors.New("links to etcd require etcd: each raft voter has a single address for all other voters")
	case o.Standalone:
	case o.Raft:
		if err := p.startWitness(); err != nil {
			return nil, err
		}
	case o.EtcdAddress != "":
		p.etcd = &etcdServer{last: o.EtcdAddress}
	default:
		p.etcd, err = startEtcd(ctx, embedded.Options{Dir: filepath.Join(o.Dir, "etcd"), UnsafeNoFsync: o.EtcdNoSync})
		if err != nil {
			return nil, err
		}
	}
	for i, name := range []string{"a", "b"} {
		if o.Standalone && i > 0 {
			break
		}
		n, err := p.newNode(name, filepath.Join(o.Dir, name), o.Listen[i])
		if err != nil {
			return nil, err
		}
		p.Nodes = append(p.Nodes, n)
	}
	for i, n := range p.Nodes {
		if i > 0 && o.AFirst {
			if _, err := p.WaitActive(ctx); err != nil {
				return nil, err
			}
		}
		if err := n.Start(); err != nil {
			return nil, err
		}
	}
	return p, nil
}

// ErrInUse is returned if another pair is running in Options.Dir.
var ErrInUse = errors.New("directory is in use by another pair")

// ErrAddressInUse is returned if another process listens on one of Options.Listen.
var ErrAddressInUse = errors.New("address is in use by another process")

func checkListen(ctx context.Context, address string) error {
	if address == "" {
		return nil
	}
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return fmt.Errorf("%w: %s", ErrAddressInUse, address)
	case err != nil:
		return fmt.Errorf("address of a node: %w", err)
	}
	if err := l.Close(); err != nil {
		return fmt.Errorf("address of a node: %w", err)
	}
	return nil
}

// lockDir locks the pair's directory, so that a second pair in it fails immediately. Otherwise, the second etcd would
// wait indefinitely for the file lock of the first etcd.
func (p *Pair) lockDir() error {
	if err := os.MkdirAll(p.o.Dir, 0o750); err != nil {
		return fmt.Errorf("directory of the pair: %w", err)
	}
	lock, err := vfs.OS().Lock(filepath.Join(p.o.Dir, "lock"))
	switch {
	case errors.Is(err, vfs.ErrLocked):
		return fmt.Errorf("%w: %s", ErrInUse, p.o.Dir)
	case err != nil:
		return fmt.Errorf("directory of the pair: %w", err)
	}
	p.lock = lock
	return nil
}

// votersFile is the name of the file with the comma-separated addresses of the voters, which remain the same after a
// restart.
const votersFile = "voters"

// startWitness reserves the ports of the nodes' voters, and starts the witness. It uses the same ports as an earlier
// pair in this directory.
func (p *Pair) startWitness() error {
	file := filepath.Join(p.o.Dir, votersFile)
	before := make([]string, 3)
	raw, err := os.ReadFile(file)
	if err == nil {
		if before = strings.Split(strings.TrimSpace(string(raw)), ","); len(before) != 3 {
			return fmt.Errorf("raft: %s has %d voter addresses, three are required", file, len(before))
		}
	} else if !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("raft: %w", err)
	}
	for i := range 2 {
		port, err := reserveAt(before[i])
		if err != nil {
			return fmt.Errorf("raft: %w", err)
		}
		p.voters = append(p.voters, port)
	}
	w, err := p.at("witness", filepath.Join(p.o.Dir, "witness"), before[2])
	if err != nil {
		return err
	}
	p.Witness = w
	if p.o.Placement == nil {
		if err := os.WriteFile(file, []byte(p.Voters()+"\n"), 0o600); err != nil {
			return fmt.Errorf("raft: %w", err)
		}
	}
	w.command = append(w.command, "witness", "--data-dir="+w.DataDir(), "--listen="+w.Address, "--voters="+p.Voters())
	w.command = append(w.command, p.o.WitnessFlags...)
	if level := p.o.Settings["log.level"]; level != "" {
		w.command = append(w.command, "--log-level="+level)
	}
	return w.Start()
}

func (p *Pair) at(name, dir, listen string) (*Node, error) {
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return nil, fmt.Errorf("node %s: %w", name, err)
	}
	at := Placement{Address: listen}
	if p.o.Placement != nil {
		var err error
		if at, err = p.o.Placement(name, dir); err != nil {
			return nil, err
		}
	}
	return newNode(name, dir, p.o.Binary, at, p.o.Credentials)
}

func (p *Pair) newNode(name, dir, listen string) (_ *Node, err error) {
	n, err := p.at(name, dir, listen)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, n.release())
		}
	}()
	advertise := ""
	if p.o.Links {
		if n.link, err = faultproxy.Listen(n.Address); err != nil {
			return nil, fmt.Errorf("link to node %s: %w", name, err)
		}
		advertise = n.link.Address()
	}
	if p.etcd != nil && p.o.EtcdLinks {
		if n.etcdLink, err = faultproxy.ListenOn(p.linkHost(), p.etcd.address()); err != nil {
			return nil, fmt.Errorf("link to etcd: %w", err)
		}
	}
	settings := map[string]string{
		"node.name": name, "data.dir": n.DataDir(), "listen": n.Address, "advertise": advertise,
	}
	maps.Copy(settings, p.coordinator(n))
	maps.Copy(settings, p.o.Settings)
	maps.Copy(settings, p.o.NodeSettings[name])
	maps.DeleteFunc(settings, func(_, value string) bool { return value == "" })
	args, err := n.arguments(settings, p.o.ConfigFiles)
	if err != nil {
		return nil, err
	}
	n.command = append(n.command, args...)
	return n, nil
}

func (p *Pair) coordinator(n *Node) map[string]string {
	switch {
	case p.Witness != nil:
		return map[string]string{
			"coordinator.type": "raft", "coordinator.raft.voters": p.Voters(),
			"coordinator.raft.listen": p.voters[int(n.Name[0]-'a')].Address(),
		}
	case n.etcdLink != nil:
		return map[string]string{"coordinator.etcd.endpoints": n.etcdLink.Address()}
	case p.etcd != nil:
		return map[string]string{"coordinator.etcd.endpoints": p.etcd.address()}
	default:
		return map[string]string{"standalone": "true"}
	}
}

// Peer creates an additional node with the name and the settings of the node like, for a copy of that node's data
// directory. The additional node is not started, and is closed with the pair. Its directory is next to those of the
// pair; its DataDir does not exist yet. Peer does not support Options.Links or Raft.
func (p *Pair) Peer(like *Node, dir string) (*Node, error) {
	n, err := p.newNode(like.Name, filepath.Join(p.o.Dir, dir), "")
	if err == nil {
		p.peers = append(p.peers, n)
	}
	return n, err
}

// Processes returns the nodes and the witness, if any.
func (p *Pair) Processes() []*Node {
	if p.Witness == nil {
		return p.Nodes
	}
	return append(slices.Clone(p.Nodes), p.Witness)
}

// all returns the nodes, including those created by Peer, and the witness.
func (p *Pair) all() []*Node {
	all := slices.Concat(p.Nodes, p.peers)
	if p.Witness != nil {
		all = append(all, p.Witness)
	}
	return all
}

// Addresses returns the addresses of the nodes for clients.
func (p *Pair) Addresses() []string {
	out := make([]string, len(p.Nodes))
	for i, n := range p.Nodes {
		out[i] = n.Address
	}
	return out
}

// Voters returns the comma-separated addresses of the three voters, if Options.Raft is set.
func (p *Pair) Voters() string {
	return strings.Join([]string{p.voters[0].Address(), p.voters[1].Address(), p.Witness.Address}, ",")
}

// VoterOf returns the address of a node's voter, if Options.Raft is set.
func (p *Pair) VoterOf(n *Node) string { return p.voters[slices.Index(p.Nodes, n)].Address() }

// Coordinator returns a description of the coordinator, or "" for a standalone node.
func (p *Pair) Coordinator() string {
	switch {
	case p.etcd != nil:
		return "etcd is on " + p.etcd.address()
	case p.Witness != nil:
		return "the witness is on " + p.Witness.Address
	default:
		return ""
	}
}

// EtcdAddress returns the host:port of etcd, or "" without etcd. It is in use until Close.
func (p *Pair) EtcdAddress() string {
	if p.etcd == nil {
		return ""
	}
	return p.etcd.address()
}

// Find returns the node with this address, or with a link at this address, or nil.
func (p *Pair) Find(address string) *Node {
	for _, n := range slices.Concat(p.Nodes, p.peers) {
		if n.Address == address || n.link != nil && n.link.Address() == address {
			return n
		}
	}
	return nil
}

// Other returns the node that is not n.
func (p *Pair) Other(n *Node) *Node {
	if p.Nodes[0] == n {
		return p.Nodes[1]
	}
	return p.Nodes[0]
}

// Close stops the nodes, which write a checkpoint, and then the witness or etcd. It releases all resources except the
// directory. Further calls do nothing.
func (p *Pair) Close() error { return p.close(false) }

// KillAll is like Close, but kills the processes.
func (p *Pair) KillAll() error { return p.close(true) }

func (p *Pair) close(atOnce bool) error {
	nodes := slices.Concat(p.Nodes, p.peers)
	ended := make(chan error, len(nodes))
	for _, n := range nodes {
		go func() { ended <- n.end(atOnce) }()
	}
	var all []error
	for range nodes {
		all = append(all, <-ended)
	}
	if p.Witness != nil {
		all = append(all, p.Witness.end(atOnce))
	}
	for _, n := range p.all() {
		all = append(all, n.release())
	}
	for _, port := range p.voters {
		all = append(all, port.Close())
	}
	p.voters = nil
	if p.etcd != nil {
		all = append(all, p.etcd.stop())
	}
	if p.lock != nil {
		all = append(all, p.lock.Close())
		p.lock = nil
	}
	return errors.Join(all...)
}
