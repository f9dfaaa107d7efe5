// SPDX-License-Identifier: Apache-2.0

// Package link provides package client/admin with the connections of a client.Client, and defines errors that both
// packages use.
package link

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// Of returns the connections of a client.Client. Package client sets it during initialization.
var Of func(client any) Conns //nolint:gochecknoglobals // a constant after initialization

// Call is one attempt of a request.
type Call = func(context.Context, *grpc.ClientConn) error

// CallAs is one attempt of a request with a producer identity.
type CallAs = func(context.Context, *grpc.ClientConn, *pb.Producer) error

// Target determines the pair of a fleet to which a request is sent first. The zero Target is the home pair of the
// client.
type Target struct {
	// Queue is the queue of the request.
	Queue string
	// XID is the XID of a prepared transaction, for a request without a queue.
	XID string
	// Pair and Addresses are the name and the nodes of another pair that the home pair has reported, for a request
	// without a queue.
	Pair      string
	Addresses []string
}

// Conns sends requests over the connections of a client to its home pair, and to the pairs that own the queues of the
// requests.
type Conns interface {
	// Read sends a read-only request to the active node until it responds.
	Read(ctx context.Context, op string, to Target, call Call) error
	// Repeat is like Read, for a request that changes state and may be executed more than once.
	Repeat(ctx context.Context, op string, to Target, call Call) error
	// Once is like Repeat, for a request that must not be executed twice. An attempt without a response is not retried.
	Once(ctx context.Context, op string, to Target, call Call) error
	// Change is like Repeat, for a request that is executed at most once under the identity id, or under a new identity
	// if id is nil.
	Change(ctx context.Context, op string, to Target, id Identity, call CallAs) error
	NewIdentity() Identity
	Active(ctx context.Context, op string) (Node, error)
	Node(address string) (Node, error)
	Addresses() []string
}

// Identity makes retries of one request idempotent.
type Identity interface {
	// OutcomeUnknown reports whether the request may have been committed although no node has reported its result.
	OutcomeUnknown() bool
}

// Node is a node that the client has a connection to. It may belong to another pair.
type Node interface {
	Address() string
	// Conn returns the current connection. A connection that does not respond is replaced.
	Conn() *grpc.ClientConn
	// Error converts a gRPC error into a client.Error.
	Error(ctx context.Context, err error) error
	// OnceError is like Error, for a request that must not be executed twice. Without a response, the error also wraps
	// client.ErrOutcomeUnknown.
	OnceError(ctx context.Context, err error) error
}

// Wrap adds the operation to an error from a node, unless the first word of message is the first word of op.
func Wrap(op string, err error, message string) error {
	verb, _, _ := strings.Cut(op, " ")
	if first, _, _ := strings.Cut(message, " "); strings.TrimSuffix(first, ":") == verb {
		return err
	}
	return fmt.Errorf("%s: %w", op, err)
}

// Errors of administrative calls, documented in client/admin.
var (
	ErrNotEmpty       = errors.New("queue is not empty")
	ErrNoRule         = errors.New("rule, role, token or quota not found")
	ErrBusy           = errors.New("another maintenance operation is running")
	ErrRoleChanged    = errors.New("rewrite canceled by a role change")
	ErrCanceled       = errors.New("rewrite was canceled")
	ErrNoSpace        = errors.New("not enough free disk space")
	ErrBackupNotFound = errors.New("backup not found")
	ErrNoConnection   = errors.New("connection not found")
	ErrNoJob          = errors.New("job not found")
	ErrNoSchedule     = errors.New("schedule not found")
	ErrNoPolicy       = errors.New("policy not found")
	ErrNoTransaction  = errors.New("prepared transaction not found")
	ErrDecided        = errors.New("transaction coordinator made the opposite decision")
	ErrHeuristic      = errors.New("opposite decision was made without the transaction coordinator")
	ErrNoPlan         = errors.New("no plan is running")
)

// DurationToProto converts a duration. It returns nil for 0.
func DurationToProto(d time.Duration) *durationpb.Duration {
	if d == 0 {
		return nil
	}
	return durationpb.New(d)
}

// TimeFromProto converts a timestamp. It returns the zero time for nil.
func TimeFromProto(t *timestamppb.Timestamp) time.Time {
	if t == nil {
		return time.Time{}
	}
	return t.AsTime()
}
