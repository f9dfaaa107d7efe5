// SPDX-License-Identifier: Apache-2.0

//go:build race

package guard

// raceFactor: the race detector allocates, too, and keeps pools from giving back what was put into them.
const raceFactor = 2
