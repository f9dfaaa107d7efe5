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

func (p *Pair) linkHost() string { return cmp.Or(p.o.EtcdLinkHost, "127.0.0.1") }

// Cut partitions the two nodes in both directions, without resetting connections. Clients with DialOptions still reach
// both nodes. Cut, and the methods up to LoseCut, require Options.Links.
func (p *Pair) Cut() {
	for _, n := range p.Nodes {
		n.link.Cut()
	}
}

// Heal ends all cuts between the nodes. Held data is delivered.
func (p *Pair) Heal() {
	for _, n := range p.Nodes {
		n.link.Heal()
	}
}

// CutFrom holds all data that a node sends to the other node, on any connection. The other direction is not
// affected.
func (p *Pair) CutFrom(n *Node) {
	n.link.CutOneWay(faultproxy.FromTarget)
	p.Other(n).link.CutOneWay(faultproxy.ToTarget)
}

// LoseCut ends all cuts between the nodes. Held data is lost, because its connections are reset.
func (p *Pair) LoseCut() {
	for _, n := range p.Nodes {
		n.link.Reset()
	}
	p.Heal()
}

// CutFromEtcd partitions a node from etcd. It requires Options.EtcdLinks, as do the methods up to StartEtcd.
func (p *Pair) CutFromEtcd(n *Node) { n.etcdLink.Cut() }

// HealToEtcd ends CutFromEtcd, and delivers the held data.
func (p *Pair) HealToEtcd(n *Node) { n.etcdLink.Heal() }

// EtcdOf returns the address by which a node connects to etcd.
func (p *Pair) EtcdOf(n *Node) string { return n.etcdLink.Address() }

// StopEtcd stops etcd. Its data is kept.
func (p *Pair) StopEtcd() error { return p.etcd.stop() }

// StartEtcd restarts etcd with its data.
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

// Held returns how often the cuts of all links have held data. It is 0 if no cut had an effect.
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

// DialOptions returns options for clients that bypass the links, although the nodes advertise the addresses of the
// links. Cut does not affect such a client.
func (p *Pair) DialOptions() []grpc.DialOption {
	return []grpc.DialOption{grpc.WithContextDialer(p.Dial)}
}

// Dial connects to an address. If the address is that of a node's link, it connects directly to the node.
func (p *Pair) Dial(ctx context.Context, address string) (net.Conn, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", p.BypassLink(address))
	if err != nil {
		return nil, fmt.Errorf("dial: %w", err)
	}
	return conn, nil
}

// BypassLink returns the node's address if address is that of its link; otherwise it returns address.
func (p *Pair) BypassLink(address string) string {
	if n := p.Find(address); n != nil {
		return n.Address
	}
	return address
}
