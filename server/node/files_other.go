// SPDX-License-Identifier: Apache-2.0

//go:build !unix

package node

// openFilesLimit returns false.
func openFilesLimit() (uint64, bool) { return 0, false }
