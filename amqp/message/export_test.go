// SPDX-License-Identifier: Apache-2.0

package message

import (
	"math/rand/v2"
	"testing"
)

// Generate makes a message of AMQP, and says which of its bytes are to be the same when it leaves.
func Generate(r *rand.Rand) (all, kept []byte) { return generator{r}.message() }

// CutHeader gives what is behind the header of a message.
func CutHeader(t testing.TB, b []byte) []byte {
	t.Helper()
	return cutHeader(t, b)
}

// Annotations gives those of a message that are texts.
func Annotations(t testing.TB, b []byte) map[string]string {
	t.Helper()
	out := map[string]string{}
	for key, v := range annotationsOf(t, b) {
		if v.isString() {
			out[key] = string(v.data)
		}
	}
	return out
}

// WithProperty makes a message that has one application property of bytes.
func WithProperty(v []byte) []byte {
	b, c := begin(section(nil, codeApplicationProperties), codeMap)
	b = appendBinary(appendString(b, "k"), v)
	c.count = 2
	return appendBinary(section(c.end(b), codeData), "x")
}
