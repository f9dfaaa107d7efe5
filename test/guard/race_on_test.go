// SPDX-License-Identifier: Apache-2.0

//go:build race

package guard

// raceFactor multiplies the limits of allocations: the race detector allocates, and makes pools drop some objects.
const raceFactor = 2
