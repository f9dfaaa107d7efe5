// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"cmp"
	"context"
	"fmt"
	"net"

	"google.golang.org/grpc"

	"github.com/lockstep-mq/lockstep/test/harness/faultproxy"
)

// linkHost is where the links to etcd listen.
func (p *Pair) linkHost() string { return cmp.Or(p.o.EtcdLinkHost, "127.0.0.1") }

// Cut makes the network between the two nodes silent, in both directions: no connection is reset. Clients with
// DialOptions reach both all the same. Needs Options.Links, as all up to LoseCut do.
func (p *Pair) Cut() {
	for _, n := range p.Nodes {
		n.link.Cut()
	}
}

// Heal undoes Cut.
func (p *Pair) Heal() {
	for _, n := range p.Nodes {
		n.link.Heal()
	}
}

// CutFrom makes what a node sends to the other one, on any connection, not arrive; the other way works.
func (p *Pair) CutFrom(n *Node) {
	n.link.CutOneWay(faultproxy.FromTarget)
	p.Other(n).link.CutOneWay(faultproxy.ToTarget)
}

// LoseCut undoes Cut, but what was held back is lost, with its connections.
func (p *Pair) LoseCut() {
	for _, n := range p.Nodes {
		n.link.Reset()
	}
	p.Heal()
}

// CutFromEtcd makes the network between a node and etcd silent. Needs Options.EtcdLinks, as all up to StartEtcd do.
func (p *Pair) CutFromEtcd(n *Node) { n.etcdLink.Cut() }

// HealToEtcd undoes CutFromEtcd.
func (p *Pair) HealToEtcd(n *Node) { n.etcdLink.Heal() }

// EtcdOf is the address by which a node reaches etcd.
func (p *Pair) EtcdOf(n *Node) string { return n.etcdLink.Address() }

// StopEtcd ends etcd; its data stays.
func (p *Pair) StopEtcd() error { return p.etcd.stop() }

// StartEtcd starts etcd again over its data.
func (p *Pair) StartEtcd(ctx context.Context) error {
	if err := p.etcd.start(ctx); err != nil {
		return err
	}
	for _, n := range p.all() {
		if n.etcdLink != nil {
			n.etcdLink.SetTarget(p.etcd.address())
		}
	}
	return nil
}

// Held is how often cuts of all links have held something back: whether one has struck shows here.
func (p *Pair) Held() (times uint64) {
	for _, n := range p.all() {
		for _, l := range []*faultproxy.Relay{n.link, n.etcdLink} {
			if l != nil {
				times += l.Held()
			}
		}
	}
	return times
}

// DialOptions have a client pass by the links, which are the addresses that the nodes tell it: Cut does not concern it.
func (p *Pair) DialOptions() []grpc.DialOption {
	return []grpc.DialOption{grpc.WithContextDialer(p.Dial)}
}

// Dial connects to the node itself, where an address is that of the link before it.
func (p *Pair) Dial(ctx context.Context, address string) (net.Conn, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", p.PastLink(address))
	if err != nil {
		return nil, fmt.Errorf("dial: %w", err)
	}
	return conn, nil
}

// PastLink is the address of the node itself, where one is that of the link before it.
func (p *Pair) PastLink(address string) string {
	if n := p.Find(address); n != nil {
		return n.Address
	}
	return address
}
