// SPDX-License-Identifier: Apache-2.0

//go:build deep

package tier

// Deep is true in the deep tier.
const Deep = true
