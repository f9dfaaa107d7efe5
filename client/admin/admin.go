// SPDX-License-Identifier: Apache-2.0

// Package admin administers a Lockstep pair: queues, subscriptions, access rules, settings, maintenance and status. It
// uses the connections of a [client.Client]:
//
//	adm := admin.New(c)
//	q, created, err := adm.CreateQueue(ctx, "orders", admin.CreateQueueOptions{IfNotExists: true})
//
// Methods of [Client] send a request to the active node, and retry it there and on the other node until a node responds
// or the context ends. Methods of [Node] send it to one node, without retries. Calls of operations that most
// applications never use take and return the generated types of the API, package proto/lockstep/v1.
//
// Errors are those of package client and the Err variables of this package. [client.ErrOutcomeUnknown] means that the
// request may have been executed; a [Request] makes its retry idempotent.
package admin

import (
	"fmt"
	"time"
	"unicode/utf8"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/client/internal/link"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// Client administers the pair of a [client.Client]. It is safe for concurrent use, except after [Client.As].
type Client struct {
	conns   link.Conns
	request *Request // of As; may be nil
}

// New returns a Client that uses the connections of c. It needs not be closed.
func New(c *client.Client) *Client { return &Client{conns: link.Of(c)} }

// Errors of administrative calls, in addition to those of package client.
var (
	// ErrNotEmpty is returned when a queue to be deleted only if empty contains messages.
	ErrNotEmpty = link.ErrNotEmpty
	// ErrNoRule is returned when the rule, role, token or quota does not exist.
	ErrNoRule = link.ErrNoRule
	// ErrBusy is returned when the node or the pair already runs another maintenance operation, or the same job.
	ErrBusy = link.ErrBusy
	// ErrRoleChanged is returned when a rewrite was canceled because the node changes its role. The page file is
	// unchanged.
	ErrRoleChanged = link.ErrRoleChanged
	// ErrCanceled is returned when a rewrite was canceled by another call or by an operator. The page file is unchanged.
	ErrCanceled = link.ErrCanceled
	// ErrNoSpace is returned when free disk space is insufficient; the message contains both figures. Nothing was changed.
	ErrNoSpace = link.ErrNoSpace
	// ErrBackupNotFound is returned when a node has no complete backup of that name.
	ErrBackupNotFound = link.ErrBackupNotFound
	// ErrNoConnection is returned when a node has no connection of that number.
	ErrNoConnection = link.ErrNoConnection
	// ErrNoJob is returned when the job does not exist.
	ErrNoJob = link.ErrNoJob
	// ErrNoTransaction is returned when no transaction with that XID is prepared or remembered.
	ErrNoTransaction = link.ErrNoTransaction
	// ErrDecided is returned when the coordinator already decided the prepared transaction the other way.
	ErrDecided = link.ErrDecided
	// ErrHeuristic is returned when an operator or the timeout txn.prepared-timeout already decided the prepared
	// transaction the other way. The error text has the details.
	ErrHeuristic = link.ErrHeuristic
	// ErrNoPlan is returned when no plan that could be canceled is running.
	ErrNoPlan = link.ErrNoPlan
)

// maxNameBytes is checked before a request is sent.
const maxNameBytes = 255

func queues(cc *grpc.ClientConn) pb.QueueServiceClient { return pb.NewQueueServiceClient(cc) }

// checkName rejects values that cannot be sent as a name. The node validates the rest.
func checkName(what, name string) error {
	if name == "" || len(name) > maxNameBytes || !utf8.ValidString(name) {
		return fmt.Errorf("%w: the name of a %s has 1 to %d characters of [A-Za-z0-9._/-], this is %q", client.ErrInvalid,
			what, maxNameBytes, name)
	}
	return nil
}

// durationToProto converts a duration; 0 is not sent.
func durationToProto(d time.Duration) *durationpb.Duration {
	if d == 0 {
		return nil
	}
	return durationpb.New(d)
}

func timeFromProto(t *timestamppb.Timestamp) time.Time {
	if t == nil {
		return time.Time{}
	}
	return t.AsTime()
}
