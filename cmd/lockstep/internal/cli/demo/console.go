// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"context"
	"fmt"
	"net"
	"strconv"

	"github.com/lockstep-mq/lockstep/cmd/lockstep/internal/cli"
)

const (
	// consoleAddress is where the console of the first node is looked for, near the ports of the nodes.
	consoleAddress = "127.0.0.1:7480"
	// consoleTries is how many ports are looked at.
	consoleTries = 100
	// consoleSetting is the setting of a node that says where its console is.
	consoleSetting = "console.listen"
)

// consoles are the settings by which the nodes of a pair serve a console, on the first ports from an address on that
// are free.
func consoles(ctx context.Context, first string) (map[string]map[string]string, error) {
	settings := make(map[string]map[string]string)
	if first == "" {
		return settings, nil
	}
	host, text, err := net.SplitHostPort(first)
	if err != nil {
		return nil, cli.Usage("--console: %q is not host:port", first)
	}
	port, err := strconv.ParseUint(text, 10, 16)
	if err != nil || port == 0 {
		return nil, cli.Usage("--console: %q is not a port number between 1 and 65535", text)
	}
	nodes := []string{"a", "b"}
	for at := port; len(settings) < len(nodes); at++ {
		if at >= port+consoleTries {
			return nil, fmt.Errorf("--console: no port from %d to %d of %s can be listened on", port, at-1, host)
		}
		address := net.JoinHostPort(host, strconv.FormatUint(at, 10))
		l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
		if err != nil {
			continue // it is another process's
		}
		if err := l.Close(); err != nil {
			return nil, fmt.Errorf("--console: %w", err)
		}
		settings[nodes[len(settings)]] = map[string]string{consoleSetting: address}
	}
	return settings, nil
}
