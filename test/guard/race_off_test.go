// SPDX-License-Identifier: Apache-2.0

//go:build !race

package guard

// raceFactor multiplies the limits of allocations.
const raceFactor = 1
