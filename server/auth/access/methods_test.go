// SPDX-License-Identifier: Apache-2.0

package access_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/lockstep-mq/lockstep/server/auth/access"
)

func TestEveryMethodHasRequirement(t *testing.T) {
	methods := 0
	protoregistry.GlobalFiles.RangeFiles(func(f protoreflect.FileDescriptor) bool {
		if !strings.HasPrefix(string(f.Package()), "lockstep.") && f.Package() != "grpc.health.v1" {
			return true
		}
		for i := range f.Services().Len() {
			service := f.Services().Get(i)
			for j := range service.Methods().Len() {
				name := "/" + string(service.FullName()) + "/" + string(service.Methods().Get(j).Name())
				_, known := access.NeedOf(name)
				require.True(t, known, "%s is not in the table of server/auth/access/methods.go", name)
				methods++
			}
		}
		return true
	})
	require.Greater(t, methods, 50)
	_, known := access.NeedOf("/lockstep.v1.QueueService/Unknown")
	require.False(t, known)
}
