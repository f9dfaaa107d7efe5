// SPDX-License-Identifier: Apache-2.0

package measure

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Dirty pages stay in the page cache.
func adviseDontNeed(f *os.File) error {
	if err := unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED); err != nil {
		return fmt.Errorf("evict %s from the page cache: %w", f.Name(), err)
	}
	return nil
}
