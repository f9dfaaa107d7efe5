// SPDX-License-Identifier: Apache-2.0

package apierror

import (
	"errors"
	"fmt"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// FromPeer converts the status of a request of this node to a node of another pair. A status with a known reason
// becomes an error that matches the sentinel error. Otherwise, Unavailable and DeadlineExceeded become unreachable,
// and other statuses become plain errors. The result does not wrap the received status. FromPeer returns nil for nil.
func FromPeer(err, unreachable error) error {
	if err == nil {
		return nil
	}
	known := FromStatus(err)
	st, still := status.FromError(known)
	switch {
	case !still:
		return known
	case st.Code() == codes.Unavailable, st.Code() == codes.DeadlineExceeded:
		return fmt.Errorf("%w: %s", unreachable, st.Message())
	default:
		return errors.New(st.Message())
	}
}
