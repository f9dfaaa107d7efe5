// SPDX-License-Identifier: Apache-2.0

package client

import (
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/proto/reason"
)

// TestProtocolTable compares the error table of docs/reference/protocol.md with errors.proto and the behavior of this
// client; UPDATE_GOLDEN=1 writes the table.
func TestProtocolTable(t *testing.T) {
	const document, begin, end = "../docs/reference/protocol.md", "<!-- reasons -->\n", "<!-- end of reasons -->"
	b, err := os.ReadFile(document)
	require.NoError(t, err)
	before, rest, ok := strings.Cut(string(b), begin)
	require.True(t, ok)
	part, after, ok := strings.Cut(rest, end)
	require.True(t, ok)
	want := protocolTable(t)
	if os.Getenv("UPDATE_GOLDEN") != "" {
		require.NoError(t, os.WriteFile(document, []byte(before+begin+want+end+after), 0o600))
		return
	}
	require.Equal(t, want, part, "run: UPDATE_GOLDEN=1 go test ./client -run TestProtocolTable")
}

// protocolTable returns the table with a row for each reason, sorted by number.
func protocolTable(t *testing.T) string {
	t.Helper()
	var numbers []int32
	for n := range pb.ErrorReason_name {
		if n != 0 {
			numbers = append(numbers, n)
		}
	}
	slices.Sort(numbers)
	var out strings.Builder
	out.WriteString("| Number | Reason | Code | Attempt | Action |\n|---|---|---|---|---|\n")
	for _, n := range numbers {
		name := reason.Name(pb.ErrorReason(n))
		code := reason.Code(pb.ErrorReason(n))
		e := streamError(t.Context(), "node:1", &pb.RequestError{Code: uint32(code), Reason: name})
		attempt, then := "not applied", "return the error"
		if !e.answered() {
			attempt = "may be applied"
		}
		switch {
		case errors.Is(e.kind, ErrUnauthenticated):
			then = "retry with another token"
		case e.forgotten():
			then = "retry as a new producer if the ID is random and no earlier attempt is unanswered"
		case e.reason == pb.ErrorReason_ERROR_REASON_NOT_OWNER:
			then = "retry at the owner"
		case e.reason == pb.ErrorReason_ERROR_REASON_QUEUE_PARTITIONED:
			then = "send the request to a partition"
		case e.retry():
			then = "retry"
		}
		fmt.Fprintf(&out, "| %d | `%s` | %s | %s | %s |\n", n, name, codeName(code), attempt, then)
	}
	return out.String()
}

// codeName returns the code as spelled in gRPC's documentation.
func codeName(c codes.Code) string {
	if c == codes.Canceled {
		return "CANCELLED"
	}
	return strings.ToUpper(regexp.MustCompile(`([a-z])([A-Z])`).ReplaceAllString(c.String(), "${1}_$2"))
}
