// SPDX-License-Identifier: Apache-2.0

//go:build unix

package serve

import (
	"fmt"
	"os"
	"syscall"
)

const canRestart = true

// execAgain replaces this process with the program that is now on disk. Arguments, environment and process ID stay
// the same, so a supervisor does not detect the restart. The new process listens on address, because the system may
// have chosen the port of this process. execAgain returns only on failure.
func execAgain(program, address string) error {
	args := append(append([]string{}, os.Args...), "--listen="+address) // the last --listen takes precedence
	if err := syscall.Exec(program, args, os.Environ()); err != nil {   //nolint:gosec // the path of this program
		return fmt.Errorf("restart %s: %w; start the node manually", program, err)
	}
	return nil
}
