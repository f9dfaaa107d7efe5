// SPDX-License-Identifier: Apache-2.0

package docs

import (
	"cmp"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// TestOptionsReference compares the table of docs/reference/queues/index.md with the options in types.proto. The flag
// -update writes the table.
func TestOptionsReference(t *testing.T) {
	var b strings.Builder
	b.WriteString("| Field | Flag | Type | Meaning |\n|---|---|---|---|\n")
	fields := (&pb.QueueConfig{}).ProtoReflect().Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		o, _ := proto.GetExtension(f.Options(), pb.E_QueueOption).(*pb.QueueOption)
		require.NotEmpty(t, o.GetUsage(), f.Name())
		require.NotEmpty(t, o.GetLabel(), f.Name())
		kind := strings.TrimRight(f.Kind().String(), "0123456789")
		switch {
		case f.Kind() == protoreflect.MessageKind:
			kind = "duration"
		case f.Kind() == protoreflect.EnumKind:
			kind = "name"
		case o.GetBytes():
			kind = "size"
		}
		flag := cmp.Or(o.GetFlag(), strings.ReplaceAll(string(f.Name()), "_", "-"))
		fmt.Fprintf(&b, "| `%s` | `--%s` | %s | %s |\n", f.Name(), flag, kind, o.GetUsage())
	}
	generated(t, "docs/reference/queues/index.md", "options", b.String())
}
