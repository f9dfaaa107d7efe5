// SPDX-License-Identifier: Apache-2.0

//go:build deep

package tier

// Deep reports whether the tests run in the deep tier.
const Deep = true
