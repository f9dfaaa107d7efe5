// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
)

// netPrefix is the prefix of the names of the namespaces. The process ID of the test follows it.
const netPrefix = "lockstep-"

// netPort is the port of the nodes: each node has a separate address.
const netPort = "7420"

// Net is a network of two namespaces, one for each node, in which packets can be dropped in one or both directions.
// Unlike with a Proxy, the ends of a connection receive no TCP acknowledgements for dropped packets. Each namespace
// has a link to the other namespace, and a link to the test's namespace, which contains the coordinator and the
// clients.
type Net struct {
	names []string // of the namespaces of nodes a and b
	addrs []string // of the test's end, and of the nodes
}

// NewNet creates the network, and removes networks of killed test processes. Close removes the network. NewNet
// returns ErrNoNet if the machine does not support network namespaces.
func NewNet(ctx context.Context) (_ *Net, err error) {
	if os.Geteuid() != 0 {
		return nil, fmt.Errorf("%w: root is required", ErrNoNet)
	}
	for _, tool := range []string{"ip", "iptables"} {
		if _, err := exec.LookPath(tool); err != nil {
			return nil, fmt.Errorf("%w: %w (packages iproute2 and iptables)", ErrNoNet, err)
		}
	}
	removeNets(ctx)
	id := fmt.Sprintf("%d-%x", os.Getpid(), rand.Uint32()&0xffff)
	n := &Net{names: []string{netPrefix + id + "-a", netPrefix + id + "-b"}}
	subnet := rand.IntN(512)
	for host := 1; host <= 3; host++ {
		n.addrs = append(n.addrs, fmt.Sprintf("198.%d.%d.%d", 18+subnet/256, subnet%256, host))
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, n.Close())
		}
	}()
	// These commands fail where namespaces or iptables are forbidden, such as in a container.
	for _, ns := range n.names {
		if err := run(ctx, "ip", "netns", "add", ns); err != nil {
			return nil, fmt.Errorf("%w: %w", ErrNoNet, err)
		}
		if err := run(ctx, "ip", "netns", "exec", ns, "iptables", "-w", "-L", "INPUT"); err != nil {
			return nil, fmt.Errorf("%w: %w", ErrNoNet, err)
		}
	}
	if err := n.wire(ctx); err != nil {
		return nil, err
	}
	return n, nil
}

// wire creates the links and the routes. An address belongs to a namespace, not to a link.
func (n *Net) wire(ctx context.Context) error {
	cmds := []string{fmt.Sprintf("link add peer netns %s type veth peer name peer netns %s", n.names[0], n.names[1])}
	for i, ns := range n.names {
		out := fmt.Sprintf("ls%x%c", rand.Uint32(), 'a'+i)
		host, own, other := n.addrs[0], n.addrs[1+i], n.addrs[2-i]
		cmds = append(cmds,
			fmt.Sprintf("link add %s type veth peer name out netns %s", out, ns),
			fmt.Sprintf("addr add %s/32 dev %s", host, out),
			fmt.Sprintf("link set %s up", out),
			fmt.Sprintf("route add %s/32 dev %s src %s", own, out, host),
			fmt.Sprintf("-n %s link set lo up", ns),
			fmt.Sprintf("-n %s addr add %s/32 dev lo", ns, own),
			fmt.Sprintf("-n %s link set out up", ns),
			fmt.Sprintf("-n %s route add %s/32 dev out src %s", ns, host, own),
			fmt.Sprintf("-n %s link set peer up", ns),
			fmt.Sprintf("-n %s route add %s/32 dev peer src %s", ns, other, own))
	}
	for _, c := range cmds {
		if err := run(ctx, "ip", strings.Fields(c)...); err != nil {
			return err
		}
	}
	return nil
}

// Close removes the namespaces with their links. The processes in the namespaces must have exited.
func (n *Net) Close() error {
	var errs []error
	for _, ns := range n.names {
		if _, err := os.Stat("/run/netns/" + ns); err == nil {
			errs = append(errs, run(context.Background(), "ip", "netns", "del", ns))
		}
	}
	return errors.Join(errs...)
}

func (n *Net) host() string { return n.addrs[0] }

func (n *Net) address(name string) string { return net.JoinHostPort(n.addrs[1+index(name)], netPort) }

func (n *Net) command(name string) []string {
	return []string{"ip", "netns", "exec", n.names[index(name)]}
}

func (n *Net) dropBetween(ctx context.Context, from, to string) error {
	return n.iptables(ctx, to, "-A", "INPUT", "-s", n.addrs[1+index(from)], "-j", "DROP")
}

// dropTo drops packets from a node to a port of the test's end. dropFrom drops packets in the opposite direction.
func (n *Net) dropTo(ctx context.Context, name, port string) error {
	return n.iptables(ctx, name, "-A", "OUTPUT", "-d", n.host(), "-p", "tcp", "--dport", port, "-j", "DROP")
}

func (n *Net) dropFrom(ctx context.Context, name, port string) error {
	return n.iptables(ctx, name, "-A", "INPUT", "-s", n.host(), "-p", "tcp", "--sport", port, "-j", "DROP")
}

func (n *Net) heal(ctx context.Context) error {
	return errors.Join(n.iptables(ctx, "a", "-F"), n.iptables(ctx, "b", "-F"))
}

func (n *Net) iptables(ctx context.Context, name string, args ...string) error {
	return run(ctx, "ip", append([]string{"netns", "exec", n.names[index(name)], "iptables", "-w"}, args...)...)
}

// DropBetween drops packets from the given node to the other node. Packets in the opposite direction are not dropped.
// DropBetween and the following methods require Options.Net.
func (p *Pair) DropBetween(ctx context.Context, from *Node) error {
	return p.net.dropBetween(ctx, from.Name, p.Other(from).Name)
}

// DropToEtcd drops packets from a node to etcd.
func (p *Pair) DropToEtcd(ctx context.Context, n *Node) error {
	_, port, err := net.SplitHostPort(p.EtcdOf(n.Node))
	if err != nil {
		return fmt.Errorf("etcd: %w", err)
	}
	return p.net.dropTo(ctx, n.Name, port)
}

// DropFromEtcd drops packets from etcd to a node.
func (p *Pair) DropFromEtcd(ctx context.Context, n *Node) error {
	_, port, err := net.SplitHostPort(p.EtcdOf(n.Node))
	if err != nil {
		return fmt.Errorf("etcd: %w", err)
	}
	return p.net.dropFrom(ctx, n.Name, port)
}

// HealNet removes all drop rules.
func (p *Pair) HealNet(ctx context.Context) error { return p.net.heal(ctx) }

func index(name string) int { return int(name[0] - 'a') }

func run(ctx context.Context, name string, args ...string) error {
	if out, err := exec.CommandContext(ctx, name, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, strings.TrimSpace(string(out)))
	}
	return nil
}

// removeNets removes the namespaces of killed test processes.
func removeNets(ctx context.Context) {
	entries, err := os.ReadDir("/run/netns")
	if err != nil {
		return // no namespaces
	}
	for _, e := range entries {
		rest, ours := strings.CutPrefix(e.Name(), netPrefix)
		pid, _, _ := strings.Cut(rest, "-")
		n, err := strconv.Atoi(pid)
		if ours && err == nil && errors.Is(syscall.Kill(n, 0), syscall.ESRCH) {
			_ = run(ctx, "ip", "netns", "del", e.Name()) // the next call retries
		}
	}
}
