// SPDX-License-Identifier: Apache-2.0

//go:build unix

package serve

import (
	"fmt"
	"os"
	"syscall"
)

// canRestart: this system lets a process replace its program.
const canRestart = true

// beginAnew replaces this process by the program as it is on the disk now, with the same arguments and environment and
// the same process id: its supervisor sees nothing, and needs no rights that it did not have. It keeps the
// address that the node was bound to, in case that was chosen by the system. It returns only if that fails.
func beginAnew(program, address string) error {
	args := append(append([]string{}, os.Args...), "--listen="+address) // the last one counts
	if err := syscall.Exec(program, args, os.Environ()); err != nil {   //nolint:gosec // this very program
		return fmt.Errorf("restart %s: %w; start the node by hand", program, err)
	}
	return nil
}
