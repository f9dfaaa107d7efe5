// SPDX-License-Identifier: Apache-2.0

package codec

import (
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

const (
	replicateRecords = 5
	snapshotData     = 3
)

// maxRest is the maximum size of a message without its large field.
const maxRest = 4 << 10

// split extracts from a message a bytes field that occurs at most once, and decodes all other fields into m with
// the library. The extracted field is a slice of b. split returns false if the library must decode the whole
// message.
func split(b []byte, large protowire.Number, m proto.Message, field *[]byte) bool {
	var value []byte
	rest := make([]byte, 0, 128)
	for len(b) > 0 {
		number, typ, n := protowire.ConsumeField(b)
		switch {
		case n < 0, len(rest) > maxRest:
			return false
		case number != large:
			rest = append(rest, b[:n]...)
		case typ != protowire.BytesType || value != nil:
			return false
		default:
			_, _, tag := protowire.ConsumeTag(b)
			value, _ = protowire.ConsumeBytes(b[tag:n:n])
		}
		b = b[n:]
	}
	if proto.Unmarshal(rest, m) != nil {
		return false
	}
	*field = value
	return true
}
