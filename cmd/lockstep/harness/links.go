// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"context"
	"errors"
	"fmt"
	"net"

	"google.golang.org/grpc"

	"github.com/lockstep-mq/lockstep/cmd/lockstep/harness/relay"
)

// links are the ways to one node from the other one, and from it to etcd; both can be cut.
type links struct{ node, etcd *relay.Relay }

// openLinks puts links before the nodes, which do not run yet, and etcd.
func (p *Pair) openLinks() error {
	if p.etcd == nil {
		return errors.New("links that can be cut need an etcd: the voters of a raft quorum know each other by one " +
			"address each")
	}
	for range 2 {
		node, err := relay.Listen("")
		if err != nil {
			return fmt.Errorf("link to a node: %w", err)
		}
		l := links{node: node}
		p.links = append(p.links, &l)
		if l.etcd, err = relay.Listen(p.etcd.Address()); err != nil {
			return fmt.Errorf("link to etcd: %w", err)
		}
	}
	return nil
}

// linkSettings are those of node i that have it use its links.
func (p *Pair) linkSettings(i int, settings map[string]string) {
	if len(p.links) > 0 {
		settings["advertise"] = p.links[i].node.Address()
		settings["coordinator-etcd-endpoints"] = p.links[i].etcd.Address()
	}
}

// Cut cuts a node off from the other one and from etcd: nothing arrives any more, and no connection is reset.
// Clients reach it all the same. Needs Options.Links, as Heal does.
func (p *Pair) Cut(n *Node) {
	for i, l := range p.links {
		l.node.Cut()
		if p.Nodes[i] == n {
			l.etcd.Cut()
		}
	}
}

// Heal undoes Cut.
func (p *Pair) Heal() {
	for _, l := range p.links {
		l.node.Heal()
		l.etcd.Heal()
	}
}

// DialOptions have a client pass by the links, which are the addresses that the nodes tell it.
func (p *Pair) DialOptions() []grpc.DialOption {
	if len(p.links) == 0 {
		return nil
	}
	return []grpc.DialOption{grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
		if n := p.Find(address); n != nil {
			address = n.Address
		}
		var d net.Dialer
		return d.DialContext(ctx, "tcp", address)
	})}
}

// closeLinks closes them.
func (p *Pair) closeLinks() error {
	var errs []error
	for _, l := range p.links {
		errs = append(errs, l.node.Close())
		if l.etcd != nil {
			errs = append(errs, l.etcd.Close())
		}
	}
	p.links = nil
	return errors.Join(errs...)
}
