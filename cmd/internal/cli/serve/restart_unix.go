// SPDX-License-Identifier: Apache-2.0

//go:build unix

package serve

import (
	"fmt"
	"os"
	"syscall"
)

const canRestart = true

// execAgain replaces this process with the current program on the disk, with the same arguments, environment and
// process ID, so that a supervisor does not detect the restart. It keeps the listen address, in case the system chose
// it. It returns only on failure.
func execAgain(program, address string) error {
	args := append(append([]string{}, os.Args...), "--listen="+address) // the last one takes precedence
	if err := syscall.Exec(program, args, os.Environ()); err != nil {   //nolint:gosec // this very program
		return fmt.Errorf("restart %s: %w; start the node manually", program, err)
	}
	return nil
}
