// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"strings"

	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	"github.com/lockstep-mq/lockstep/test/harness"
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

// listen adds a listener setting for each node, with the first free ports from the address first on. It adds none if
// first is empty.
func (s served) listen(ctx context.Context, flag, setting, first string) error {
	if first == "" {
		return nil
	}
	host, text, err := net.SplitHostPort(first)
	if err != nil {
		return cli.Usage("%s: %q is not host:port", flag, first)
	}
	port, err := strconv.ParseUint(text, 10, 16)
	if err != nil || port == 0 {
		return cli.Usage("%s: %q is not a port number between 1 and 65535", flag, text)
	}
	at := port
	for _, node := range []string{"a", "b"} {
		for ; ; at++ {
			if at >= port+portTries {
				return fmt.Errorf("%s: no free port from %d to %d of %s", flag, port, at-1, host)
			}
			address := net.JoinHostPort(host, strconv.FormatUint(at, 10))
			l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
			if err != nil {
				continue // in use by another process
			}
			if err := l.Close(); err != nil {
				return fmt.Errorf("%s: %w", flag, err)
			}
			if s[node] == nil {
				s[node] = make(map[string]string)
			}
			s[node][setting] = address
			at++
			break
		}
	}
	return nil
}

// jmsURL returns a failover URL; empty if AMQP is disabled.
func (s served) jmsURL(p *harness.Pair) string {
	var list []string
	for _, n := range p.Nodes {
		if at := s[n.Name][amqpSetting]; at != "" {
			list = append(list, "amqp://"+at)
		}
	}
	if len(list) == 0 {
		return ""
	}
	return "failover:(" + strings.Join(list, ",") + ")"
}
