// SPDX-License-Identifier: Apache-2.0

// Package tier reports which tier of tests is running. CONTRIBUTING.md lists the tiers.
package tier

// Count returns deep in the deep tier, and otherwise standard.
func Count(standard, deep int) int {
	if Deep {
		return deep
	}
	return standard
}
