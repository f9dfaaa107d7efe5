// SPDX-License-Identifier: Apache-2.0

//go:build !unix

package node

// openFilesLimit is how many files this process may have open: this system has no such limit.
func openFilesLimit() (uint64, bool) { return 0, false }
