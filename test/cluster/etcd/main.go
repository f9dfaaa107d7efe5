// SPDX-License-Identifier: Apache-2.0

// Command etcd runs an etcd in a separate process, for tests that set its clock or kill it. (Without such a test, a
// pair's etcd runs in the test process.) The first argument is the data directory. The second, optional argument is
// the listen address; default 127.0.0.1:0. The program writes its address to standard output, and exits when standard
// input is closed.
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
	if len(os.Args) < 2 || len(os.Args) > 3 {
		return fmt.Errorf("usage: %s <data directory> [<listen address>]", os.Args[0])
	}
	o := embedded.Options{Dir: os.Args[1], UnsafeNoFsync: true}
	if len(os.Args) == 3 {
		o.Address = os.Args[2]
	}
	server, err := embedded.Start(context.Background(), o)
	if err != nil {
		return err
	}
	fmt.Println(server.Address())
	_, _ = io.Copy(io.Discard, os.Stdin) // until the test closes it or exits
	return server.Close()
}
