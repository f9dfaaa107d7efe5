// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"math/rand/v2"
	"testing"

	"github.com/lockstep-mq/lockstep/amqp/wire"
)

// Generate returns an AMQP message, and its part that must be delivered unchanged.
func Generate(r *rand.Rand) (all, preserved []byte) { return generator{r}.message() }

// CutHeader returns a message without its header.
func CutHeader(t testing.TB, b []byte) []byte {
	t.Helper()
	return cutHeader(t, b)
}

// Annotations returns the string annotations of a message.
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

// WithProperty returns a message with one binary application property.
func WithProperty(v []byte) []byte {
	b, c := begin(section(nil, wire.SectionApplicationProperties), codeMap)
	b = wire.AppendBinary(wire.AppendString(b, "k"), v)
	c.count = 2
	return wire.AppendBinary(section(c.end(b), wire.SectionData), "x")
}
