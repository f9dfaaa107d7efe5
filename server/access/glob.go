// SPDX-License-Identifier: Apache-2.0

package access

import "strings"

// MatchGlob tells whether a name is one that a glob stands for: `*` is any number of characters of any kind, `?` one
// byte. It takes time in proportion to the product of the lengths at most.
func MatchGlob(glob, name string) bool {
	g, n := 0, 0
	star, resume := -1, 0 // the last `*`, and where what it stands for ends at present
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

// matchPrincipal is MatchGlob for principals: who has shown nothing is meant by name only.
func matchPrincipal(glob, principal string) bool {
	if principal == Anonymous {
		return glob == Anonymous
	}
	return MatchGlob(glob, principal)
}

// LiteralPrefix is what every name begins with that a glob stands for.
func LiteralPrefix(glob string) string {
	if i := strings.IndexAny(glob, "*?"); i >= 0 {
		return glob[:i]
	}
	return glob
}
