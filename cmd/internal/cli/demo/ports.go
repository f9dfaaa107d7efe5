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
	// consoleAddress is where the console of the first node is looked for, near the ports of the nodes.
	consoleAddress = "127.0.0.1:7480"
	// amqpAddress is where AMQP 1.0 of the first node is looked for: its usual port.
	amqpAddress = "127.0.0.1:5672"
	// portTries is how many ports are looked at.
	portTries = 100
	// consoleSetting and amqpSetting are the settings of a node that say where those are.
	consoleSetting = "console.listen"
	amqpSetting    = "amqp.listen"
)

// served are settings of nodes, by their names.
type served map[string]map[string]string

// consoles are the settings by which the nodes of a pair serve a console, on the first ports from an address on that
// are free.
func consoles(ctx context.Context, first string) (served, error) {
	s := make(served)
	return s, s.listen(ctx, "--console", consoleSetting, first)
}

// listen has the nodes serve what a setting says on the first ports from an address on that are free; empty: not at
// all.
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
				return fmt.Errorf("%s: no port from %d to %d of %s can be listened on", flag, port, at-1, host)
			}
			address := net.JoinHostPort(host, strconv.FormatUint(at, 10))
			l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
			if err != nil {
				continue // it is another process's
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

// jmsURL is what Qpid JMS is given to find the pair; empty where no AMQP is served.
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
