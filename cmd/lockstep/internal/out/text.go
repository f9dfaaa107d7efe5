// SPDX-License-Identifier: Apache-2.0

package out

import (
	"maps"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// maxBodyText is how much of a body a table shows, in characters.
const maxBodyText = 60

// Body shows the beginning of a body on one line.
func Body(body []byte) string {
	head := body[:min(len(body), 4*maxBodyText)]
	for len(head) < len(body) && len(head) > 0 && !utf8.RuneStart(body[len(head)]) {
		head = head[:len(head)-1] // do not cut a character in two
	}
	if !utf8.Valid(head) {
		return "(binary)"
	}
	runes := []rune(string(head))
	cut := len(runes) > maxBodyText || len(head) < len(body)
	if len(runes) > maxBodyText {
		runes = runes[:maxBodyText]
	}
	q := strconv.Quote(string(runes))
	s := q[1 : len(q)-1]
	s = strings.ReplaceAll(s, `\"`, `"`)
	if cut {
		s += "…"
	}
	return s
}

// Properties shows properties in the order of their keys.
func Properties(m map[string]string) string {
	parts := make([]string, 0, len(m))
	for _, k := range slices.Sorted(maps.Keys(m)) {
		parts = append(parts, k+"="+Body([]byte(m[k])))
	}
	return strings.Join(parts, " ")
}
