// SPDX-License-Identifier: Apache-2.0

//go:build race

package guard

// raceFactor: the race detector allocates, and makes pools drop some of their objects.
const raceFactor = 2
