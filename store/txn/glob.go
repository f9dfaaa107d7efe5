// SPDX-License-Identifier: Apache-2.0

package txn

import "strings"

// MatchGlob reports whether a name matches a glob: `*` matches any sequence of bytes, `?` one byte. The running time is
// at most proportional to the product of the lengths.
func MatchGlob(glob, name string) bool {
	g, n := 0, 0
	star, resume := -1, 0 // the last `*`, and the current end of its match
	for n < len(name) {
		switch {
		case g < len(glob) && glob[g] == '*':
			star, resume = g, n
			g++
		case g < len(glob) && (glob[g] == '?' || glob[g] == name[n]):
			g++
			n++
		case star >= 0:
			resume++
			g, n = star+1, resume
		default:
			return false
		}
	}
	for g < len(glob) && glob[g] == '*' {
		g++
	}
	return g == len(glob)
}

// LiteralPrefix returns the common prefix of all names that match a glob.
func LiteralPrefix(glob string) string {
	if i := strings.IndexAny(glob, "*?"); i >= 0 {
		return glob[:i]
	}
	return glob
}
