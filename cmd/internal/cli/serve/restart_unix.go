// SPDX-License-Identifier: Apache-2.0

//go:build unix

package serve

import (
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"syscall"
)

const canRestart = true

// execAgain replaces this process with the program that is now on disk. Arguments, environment and process ID stay
// the same, so a supervisor does not detect the restart. execAgain returns only on failure.
func execAgain(program, listen, address string) error {
	args := restartArgs(os.Args, listen, address)
	if err := syscall.Exec(program, args, os.Environ()); err != nil { //nolint:gosec // the path of this program
		return fmt.Errorf("restart %s: %w; start the node manually", program, err)
	}
	return nil
}

// restartArgs returns the arguments of the next process. listen is the setting of this process, and address is its
// bound address. If listen has port 0, the next process uses the port that the system has chosen for this process.
// Otherwise, it reads listen again, because the configuration file may have changed.
func restartArgs(args []string, listen, address string) []string {
	args = slices.Clone(args)
	host, port, err := net.SplitHostPort(listen)
	if n, errNumber := strconv.Atoi(port); err != nil || errNumber != nil || n != 0 {
		return args
	}
	if _, port, err = net.SplitHostPort(address); err != nil {
		return args
	}
	return append(args, "--listen="+net.JoinHostPort(host, port)) // the last --listen takes precedence
}
