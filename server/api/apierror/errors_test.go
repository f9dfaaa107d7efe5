// SPDX-License-Identifier: Apache-2.0

package apierror

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/lockstep-mq/lockstep/failover"
	"github.com/lockstep-mq/lockstep/fleet"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/proto/reason"
	"github.com/lockstep-mq/lockstep/replication"
	"github.com/lockstep-mq/lockstep/store"
	"github.com/lockstep-mq/lockstep/store/index"
	"github.com/lockstep-mq/lockstep/store/txn"
)

// Each error of the table is converted to the code of its reason, even if it is wrapped. The status is converted
// back to that error, or to another error with the same reason.
func TestErrorTableRoundTrip(t *testing.T) {
	for _, m := range errorTable {
		t.Run(reason.Name(m.reason), func(t *testing.T) {
			err := ToStatus(fmt.Errorf("publish to %q: %w", "orders", m.err))
			require.Equal(t, m.code(), status.Code(err))
			back := FromStatus(err)
			require.Equal(t, m.reason, lookup(back).reason)
			require.Contains(t, back.Error(), `to "orders"`)

			request := ToRequestError(fmt.Errorf("request 7: %w", m.err))
			require.Equal(t, uint32(m.code()), request.GetCode())
			require.Equal(t, reason.Name(m.reason), request.GetReason())
		})
	}
}

// Every reason of the API is used. The test names the reasons that are not in errorTable.
func TestEveryReasonIsUsed(t *testing.T) {
	used := map[pb.ErrorReason]bool{
		pb.ErrorReason_ERROR_REASON_UNSPECIFIED: true, pb.ErrorReason_ERROR_REASON_INTERNAL: true,
		pb.ErrorReason_ERROR_REASON_UNDECODABLE: true, pb.ErrorReason_ERROR_REASON_ACK_DEADLINE_EXPIRED: true,
		pb.ErrorReason_ERROR_REASON_TOKEN_EXPIRED: true, pb.ErrorReason_ERROR_REASON_AUTH_UNAVAILABLE: true,
	}
	for _, m := range errorTable {
		used[m.reason] = true
	}
	for n := range pb.ErrorReason_name {
		require.True(t, used[pb.ErrorReason(n)], pb.ErrorReason(n))
	}
	require.Len(t, used, len(pb.ErrorReason_name), "a used reason is not in the API")
}

// The codes match the documentation in queue.proto.
func TestDocumentedCodes(t *testing.T) {
	for err, want := range map[error]codes.Code{
		txn.ErrFenced: codes.Aborted, txn.ErrTooOld: codes.OutOfRange, txn.ErrProducerForgotten: codes.OutOfRange,
		index.ErrDataLoss: codes.DataLoss, txn.ErrQueueFull: codes.ResourceExhausted,
		txn.ErrQueueNotFound: codes.NotFound,
		txn.ErrQueueExists:   codes.AlreadyExists, txn.ErrInvalidName: codes.InvalidArgument,
		replication.ErrOutcomeUnknown: codes.Unavailable, replication.ErrBlocked: codes.Unavailable,
		replication.ErrNotActive: codes.FailedPrecondition, context.Canceled: codes.Canceled,
	} {
		require.Equal(t, want, status.Code(ToStatus(err)), err)
	}
}

// The status and the response in a stream contain the owner of a queue.
func TestNotOwner(t *testing.T) {
	err := fmt.Errorf("publish: %w", &NotOwnerError{
		Queue: "orders", Pair: "b", Addresses: []string{"b1:7420", "b2:7420"}, Epoch: 7,
	})
	want := &pb.NotOwner{Queue: "orders", Pair: "b", Addresses: []string{"b1:7420", "b2:7420"}, Epoch: 7}
	response := ToRequestError(err)
	require.Equal(t, "NOT_OWNER", response.GetReason())
	require.True(t, proto.Equal(want, response.GetNotOwner()))
	st := status.Convert(ToStatus(err))
	require.Equal(t, codes.FailedPrecondition, st.Code())
	require.Len(t, st.Details(), 2)
	require.True(t, proto.Equal(want, st.Details()[1].(*pb.NotOwner)))
	require.Nil(t, ToRequestError(ErrCrossPair).GetNotOwner())
}

// An unknown outcome takes precedence over the reason that it wraps.
func TestReasonOfWrappedErrors(t *testing.T) {
	err := fmt.Errorf("%w: %w", replication.ErrOutcomeUnknown, replication.ErrBlocked)
	require.Equal(t, pb.ErrorReason_ERROR_REASON_OUTCOME_UNKNOWN, lookup(err).reason)
	err = fmt.Errorf("%w: %w", replication.ErrOutcomeUnknown, replication.ErrNotActive)
	require.Equal(t, pb.ErrorReason_ERROR_REASON_OUTCOME_UNKNOWN, lookup(err).reason)
	err = fmt.Errorf("%w: %w", replication.ErrOutcomeUnknown, context.Canceled)
	require.Equal(t, pb.ErrorReason_ERROR_REASON_OUTCOME_UNKNOWN, lookup(err).reason)
	err = fmt.Errorf("%w: %w", failover.ErrForce, failover.ErrUnknownOutcome)
	require.Equal(t, pb.ErrorReason_ERROR_REASON_OUTCOME_UNKNOWN, lookup(err).reason)
	require.Equal(t, pb.ErrorReason_ERROR_REASON_QUEUE_FULL,
		lookup(&txn.Error{Code: txn.ErrQueueFull, Op: 3}).reason)
}

// A NotActiveError is converted to a status with a NotActive detail. The status is converted back to an equal
// error.
func TestNotActiveDetail(t *testing.T) {
	want := &NotActiveError{ActiveAddress: "b:1", ActiveNode: "id", Role: "STANDBY", RetryAfter: 20 * time.Millisecond}
	err := ToStatus(fmt.Errorf("publish: %w", want))
	require.Equal(t, codes.FailedPrecondition, status.Code(err))
	var detail *pb.NotActive
	for _, d := range status.Convert(err).Details() {
		if n, ok := d.(*pb.NotActive); ok {
			detail = n
		}
	}
	require.Equal(t, "b:1", detail.GetActiveAddress())
	var back *NotActiveError
	require.ErrorAs(t, FromStatus(err), &back)
	require.Equal(t, want, back)
	require.ErrorIs(t, FromStatus(err), replication.ErrNotActive)
}

// An error that is not in the table is converted to the code Internal. ToStatus returns nil and statuses
// unchanged.
func TestUnknownErrors(t *testing.T) {
	require.Equal(t, codes.Internal, status.Code(ToStatus(errors.New("unexpected"))))
	require.NoError(t, ToStatus(nil))
	require.NoError(t, FromStatus(nil))
	own := status.Error(codes.Unimplemented, "unknown method")
	require.Equal(t, own, ToStatus(own), "a status is unchanged")
	require.Equal(t, own, FromStatus(own), "another server's status is unchanged")
	plain := errors.New("no status")
	require.Equal(t, plain, FromStatus(plain))
}

// Roles have the same numbers in package failover and in the API, because server/api/admin converts them by
// number.
func TestRolesHaveTheSameNumbers(t *testing.T) {
	for role := failover.RoleRecovering; role <= failover.RoleFenced; role++ {
		require.Equal(t, "ROLE_"+role.String(), pb.Role(role).String())
	}
	require.Len(t, pb.Role_name, int(failover.RoleFenced)+1)
}

// Invalid classifies an error as an invalid argument and does not change its text.
func TestInvalidKeepsText(t *testing.T) {
	cause := errors.New("invalid schedule: unknown time zone")
	err := fmt.Errorf("create schedule: %w", Invalid(cause))
	require.ErrorIs(t, err, ErrInvalid)
	require.EqualError(t, err, "create schedule: "+cause.Error())
	require.Equal(t, codes.InvalidArgument, status.Code(ToStatus(err)))
}

// Errors such as an unknown outcome concern the node. Errors of a single request do not.
func TestConcernsNode(t *testing.T) {
	for _, err := range []error{
		replication.ErrNotActive, replication.ErrBlocked, replication.ErrOutcomeUnknown,
		store.ErrFailed, errors.New("unexpected"),
	} {
		require.True(t, ConcernsNode(err), err)
	}
	for _, err := range []error{
		txn.ErrQueueFull, txn.ErrQueueNotFound, txn.ErrTooLarge, txn.ErrFenced, ErrDiskLow,
		txn.ErrQueueNotEmpty, ErrNotOwner, ErrCrossPair, fleet.ErrUnavailable, fleet.ErrLost, txn.ErrNotOwned,
	} {
		require.False(t, ConcernsNode(err), err)
	}
}

// The owner of a queue replaces the logged error of a refusal, which remains settled.
func TestRefusalWithOwner(t *testing.T) {
	owner := &NotOwnerError{Queue: "q", Pair: "b"}
	refused := &txn.Result{Code: txn.ErrQueueNotFound}
	response := ToRequestError(RefusalWith(refused, true, owner))
	require.Equal(t, "NOT_OWNER", response.GetReason())
	require.True(t, response.GetSettled())
	require.Equal(t, "b", response.GetNotOwner().GetPair())
	require.False(t, ToRequestError(RefusalWith(refused, false, owner)).GetSettled())
	require.NoError(t, RefusalWith(&txn.Result{}, true, owner))
	require.ErrorIs(t, RefusalWith(refused, true, nil), txn.ErrQueueNotFound)
	require.True(t, ConcernsOwner(owner))
	require.True(t, ConcernsOwner(fleet.ErrRestored))
	require.False(t, ConcernsOwner(txn.ErrQueueNotFound))
	require.False(t, ConcernsOwner(ErrCrossPair))
	require.False(t, ConcernsOwner(nil))
}

// A status of etcd is not sent to clients.
func TestStatusOfDirectory(t *testing.T) {
	err := ToStatus(fmt.Errorf("%w: %w", fleet.ErrUnavailable, status.Error(codes.NotFound, "etcd")))
	require.Equal(t, codes.Unavailable, status.Code(err))
	require.ErrorIs(t, FromStatus(err), fleet.ErrUnavailable)
	err = ToStatus(fmt.Errorf("queue: %w", &fleet.ValueError{Key: "k", Err: errors.New("malformed")}))
	require.Equal(t, codes.Unavailable, status.Code(err))
	require.False(t, ConcernsNode(FromStatus(err)))
}

// An unknown outcome is not replaced by a redirect to the active. A redirect would imply that the request was not
// executed.
func TestUnknownOutcomeIsNotRedirected(t *testing.T) {
	err := fmt.Errorf("%w: %w", replication.ErrOutcomeUnknown, replication.ErrNotActive)
	redirect := &NotActiveError{ActiveAddress: "b:7420"}
	require.Equal(t, err, WithRedirect(err, func() *NotActiveError { return redirect }))
	require.Equal(t, redirect, WithRedirect(replication.ErrNotActive, func() *NotActiveError { return redirect }))
}
