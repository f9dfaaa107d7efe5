package codec

import (
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// replicateResponse decodes log records for a standby; they are a part of b.
func replicateResponse(b []byte, m *pb.ReplicateResponse) bool {
	const records = 5
	value, ok := split(b, records, m)
	if ok {
		m.Records = value
	}
	return ok
}

// fetchSnapshotResponse decodes a piece of a snapshot; its data is a part of b.
func fetchSnapshotResponse(b []byte, m *pb.FetchSnapshotResponse) bool {
	const data = 3
	value, ok := split(b, data, m)
	if ok {
		m.Data = value
	}
	return ok
}

// maxRest is how much a message may have beside its large field.
const maxRest = 4 << 10

// split takes a field of bytes, which is there once at most, out of a message, and has the library decode the rest.
func split(b []byte, large protowire.Number, m proto.Message) (value []byte, ok bool) {
	rest := make([]byte, 0, 128)
	for len(b) > 0 {
		field, typ, n := protowire.ConsumeField(b)
		switch {
		case n < 0, len(rest) > maxRest:
			return nil, false
		case field != large:
			rest = append(rest, b[:n]...)
		case typ != protowire.BytesType || value != nil:
			return nil, false
		default:
			_, _, tag := protowire.ConsumeTag(b)
			value, _ = protowire.ConsumeBytes(b[tag:n:n])
		}
		b = b[n:]
	}
	return value, proto.Unmarshal(rest, m) == nil
}
