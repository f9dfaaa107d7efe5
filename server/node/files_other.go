// SPDX-License-Identifier: Apache-2.0

//go:build !unix

package node

// openFilesLimit returns false, because this system does not limit the number of open files.
func openFilesLimit() (uint64, bool) { return 0, false }
