// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"

	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
)

const (
	// consoleAddress is the first candidate for node a, near the ports of the nodes.
	consoleAddress = "127.0.0.1:7480"
	// amqpAddress is the first candidate for node a: the standard port.
	amqpAddress    = "127.0.0.1:5672"
	portTries      = 100
	consoleSetting = "console.listen"
	amqpSetting    = "amqp.listen"
)

type served map[string]map[string]string

// listen adds a listener setting for each node of the pairs, with the first free ports from the given address on.
// If the address is empty, it adds no setting.
func listen(ctx context.Context, pairs []devPair, flag, setting, first string) error {
	if first == "" {
		return nil
	}
	nodes := []string{"a", "b"}
	free, err := freePorts(ctx, flag, first, len(pairs)*len(nodes), nil)
	if err != nil {
		return err
	}
	for i, address := range free {
		ports, node := pairs[i/len(nodes)].ports, nodes[i%len(nodes)]
		if ports[node] == nil {
			ports[node] = make(map[string]string)
		}
		ports[node][setting] = address
	}
	return nil
}

// freePorts returns the first n free addresses, starting with first and increasing the port. It skips the addresses
// in except.
func freePorts(ctx context.Context, flag, first string, n int, except []string) (free []string, err error) {
	host, text, err := net.SplitHostPort(first)
	if err != nil {
		return nil, cli.Usage("%s: %q is not host:port", flag, first)
	}
	port, err := strconv.ParseUint(text, 10, 16)
	if err != nil || port == 0 {
		return nil, cli.Usage("%s: %q is not a port number between 1 and 65535", flag, text)
	}
	for at, last := port, port; len(free) < n; at++ {
		if at >= last+portTries {
			return nil, fmt.Errorf("%s: no free port from %d to %d of %s", flag, last, at-1, host)
		}
		address := net.JoinHostPort(host, strconv.FormatUint(at, 10))
		if slices.Contains(except, address) {
			continue
		}
		l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
		if err != nil {
			continue // the port is in use by another process
		}
		if err := l.Close(); err != nil {
			return nil, fmt.Errorf("%s: %w", flag, err)
		}
		free, last = append(free, address), at+1
	}
	return free, nil
}

// jmsURL returns the failover URL of all nodes for Qpid JMS; empty if AMQP is disabled.
func jmsURL(pairs []devPair) string {
	var list []string
	for i := range pairs {
		s := &pairs[i]
		for _, n := range s.pair.Nodes {
			if at := s.ports[n.Name][amqpSetting]; at != "" {
				list = append(list, "amqp://"+at)
			}
		}
	}
	if len(list) == 0 {
		return ""
	}
	return "failover:(" + strings.Join(list, ",") + ")"
}
