// SPDX-License-Identifier: Apache-2.0

// Package harness runs a pair as processes on one machine, with an etcd inside this one, and breaks it: for `lockstep
// demo`, `dev` and `bench`, and for the tests (test/cluster is a layer over it). Whatever ends this process ends the
// nodes, too. Package relay, below it, is a link that can be cut.
package harness

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/failover/coordinator/etcd/embedded"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// Options of Start.
type Options struct {
	// Dir holds all data: one directory per node, with the log of its process, and one for etcd. It must exist.
	Dir string
	// Listen are the addresses of the nodes, host:port; an empty one takes a free port of 127.0.0.1.
	Listen [2]string
	// Standalone runs one node and no coordinator.
	Standalone bool
	// Raft has the nodes and a witness process hold the record, instead of an etcd.
	Raft bool
	// Links makes Cut possible; only with an etcd.
	Links bool
	// Settings of all nodes: flags of `lockstep serve` without the dashes, and their values.
	Settings map[string]string
}

// Pair is one or two nodes and their etcd.
type Pair struct {
	// Nodes, whatever their roles: "a" and "b".
	Nodes []*Node
	// Witness is the third voter with raft; nil otherwise.
	Witness *Node
	etcd    *embedded.Server
	voters  []*Port  // of the nodes, with raft
	links   []*links // of the nodes, with Options.Links
}

// Start starts etcd and the nodes. It does not wait for the nodes to serve: see WaitReady. On an error nothing is left
// running.
func Start(ctx context.Context, o Options) (_ *Pair, err error) {
	p := &Pair{}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.Close())
		}
	}()
	binary, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find this program, to run it as a node: %w", err)
	}
	settings := map[string]string{}
	switch {
	case o.Standalone:
		settings["standalone"] = "true"
	case o.Raft:
		if settings["coordinator-raft-voters"], err = p.startWitness(binary, o.Dir); err != nil {
			return nil, err
		}
		settings["coordinator-type"] = "raft"
	default:
		if p.etcd, err = embedded.Start(ctx, embedded.Options{Dir: filepath.Join(o.Dir, "etcd")}); err != nil {
			return nil, err
		}
		settings["coordinator-etcd-endpoints"] = p.etcd.Address()
	}
	for k, v := range o.Settings {
		settings[k] = v
	}
	if o.Links {
		if err := p.openLinks(); err != nil {
			return nil, err
		}
	}
	for i, name := range []string{"a", "b"} {
		if o.Standalone && i > 0 {
			break
		}
		if o.Raft {
			settings["coordinator-raft-listen"] = p.voters[i].Address()
		}
		p.linkSettings(i, settings)
		n, err := newNode(name, binary, filepath.Join(o.Dir, name), o.Listen[i], settings)
		if err != nil {
			return nil, err
		}
		if o.Links {
			p.links[i].node.SetTarget(n.Address)
		}
		p.Nodes = append(p.Nodes, n)
		if err := n.Start(); err != nil {
			return nil, err
		}
	}
	return p, nil
}

// startWitness reserves the ports of the nodes' voters, starts the witness, and returns the addresses of all three.
func (p *Pair) startWitness(binary, dir string) (voters string, err error) {
	var all []string
	for range 2 {
		port, err := ReservePort()
		if err != nil {
			return "", fmt.Errorf("raft: %w", err)
		}
		p.voters = append(p.voters, port)
		all = append(all, port.Address())
	}
	dir = filepath.Join(dir, "witness")
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return "", fmt.Errorf("witness: %w", err)
	}
	w := &Node{Name: "witness", Dir: dir, binary: binary}
	if w.port, err = ReservePort(); err != nil {
		return "", fmt.Errorf("witness: %w", err)
	}
	w.Address = w.port.Address()
	voters = strings.Join(append(all, w.Address), ",")
	w.args = []string{"witness", "--data-dir=" + w.DataDir(), "--listen=" + w.Address, "--voters=" + voters}
	p.Witness = w
	return voters, w.Start()
}

// Addresses of the nodes.
func (p *Pair) Addresses() []string {
	out := make([]string, len(p.Nodes))
	for i, n := range p.Nodes {
		out[i] = n.Address
	}
	return out
}

// Coordinator says where the pair's record is; empty for a standalone node.
func (p *Pair) Coordinator() string {
	switch {
	case p.etcd != nil:
		return "etcd is on " + p.etcd.Address()
	case p.Witness != nil:
		return "the witness is on " + p.Witness.Address
	default:
		return ""
	}
}

// Find returns the node with that address, or with a link of that address, or nil.
func (p *Pair) Find(address string) *Node {
	for i, n := range p.Nodes {
		if n.Address == address || len(p.links) > i && p.links[i].node.Address() == address {
			return n
		}
	}
	return nil
}

// Other returns the other node of n.
func (p *Pair) Other(n *Node) *Node {
	if p.Nodes[0] == n {
		return p.Nodes[1]
	}
	return p.Nodes[0]
}

// Status asks a node what it is.
func Status(ctx context.Context, c *client.Client, n *Node) (*pb.GetStatusResponse, error) {
	admin, err := c.Node(n.Address)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	return admin.Status(ctx)
}

// pollEvery is how often WaitReady looks.
const pollEvery = 20 * time.Millisecond

// WaitReady waits until one node is active and, unless standalone, the other one in sync. It fails when a node ends by
// itself. progress, if not nil, is called with what the nodes say whenever they were asked.
func (p *Pair) WaitReady(ctx context.Context, c *client.Client, progress func([]*pb.GetStatusResponse)) error {
	ticker := time.NewTicker(pollEvery)
	defer ticker.Stop()
	var last error
	for {
		status := make([]*pb.GetStatusResponse, len(p.Nodes))
		active, standby := 0, 0
		for i, n := range p.Nodes {
			if err := n.Failure(); err != nil {
				return err
			}
			s, err := Status(ctx, c, n)
			if err != nil {
				last = err
				continue
			}
			status[i] = s
			switch s.GetRole() {
			case pb.Role_ROLE_ACTIVE, pb.Role_ROLE_ACTIVE_ALONE:
				active++
			case pb.Role_ROLE_STANDBY:
				if s.GetNode().GetInSync() {
					standby++
				}
			default:
				last = fmt.Errorf("node %s: %s", n.Name, s.GetReason())
			}
		}
		if progress != nil {
			progress(status)
		}
		if active == 1 && active+standby == len(p.Nodes) {
			return nil
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return fmt.Errorf("the nodes are not ready: %w (last: %w)%s", ctx.Err(), orNone(last), p.logs())
		}
	}
}

func orNone(err error) error {
	if err == nil {
		return errors.New("no error")
	}
	return err
}

// logs gives the end of each node's log, for an error.
func (p *Pair) logs() string {
	s := ""
	for _, n := range p.Nodes {
		s += fmt.Sprintf("\n--- end of %s:\n%s", n.LogFile(), n.LogTail())
	}
	return s
}

// Close stops the nodes, which write a checkpoint, and then etcd. A second call does nothing.
func (p *Pair) Close() error {
	errs := make(chan error, len(p.Nodes))
	for _, n := range p.Nodes {
		go func() { errs <- n.close() }()
	}
	var all []error
	for range p.Nodes {
		all = append(all, <-errs)
	}
	if p.Witness != nil {
		all = append(all, p.Witness.close())
		p.Witness = nil
	}
	for _, port := range p.voters {
		all = append(all, port.Close())
	}
	p.voters = nil
	all = append(all, p.closeLinks())
	if p.etcd != nil {
		all = append(all, p.etcd.Close())
		p.etcd = nil
	}
	return errors.Join(all...)
}
