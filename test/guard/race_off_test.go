// SPDX-License-Identifier: Apache-2.0

//go:build !race

package guard

// raceFactor is what allocations may be multiplied with.
const raceFactor = 1
