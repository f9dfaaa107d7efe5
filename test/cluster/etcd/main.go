// SPDX-License-Identifier: Apache-2.0

// Command etcd is an etcd as a process of its own, for tests that set its clock: the pair's own runs in the process of
// the test. It writes its address to standard output, and ends when its standard input does.
package main

import (
	"context"
	"fmt"
	"io"
	"os"

	"github.com/lockstep-mq/lockstep/failover/coordinator/etcd/embedded"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run() error {
	if len(os.Args) != 2 {
		return fmt.Errorf("usage: %s <data directory>", os.Args[0])
	}
	server, err := embedded.Start(context.Background(), embedded.Options{Dir: os.Args[1], UnsafeNoFsync: true})
	if err != nil {
		return err
	}
	fmt.Println(server.Address())
	_, _ = io.Copy(io.Discard, os.Stdin) // until the test closes it, or ends
	return server.Close()
}
