// SPDX-License-Identifier: Apache-2.0

// Package tier reports which tier of tests runs. CONTRIBUTING.md lists the tiers.
package tier

// Count returns the number of repetitions of a test in this tier.
func Count(standard, deep int) int {
	if Deep {
		return deep
	}
	return standard
}
