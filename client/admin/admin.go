// SPDX-License-Identifier: Apache-2.0

// Package admin administers a Lockstep pair: queues, subscriptions, access rules, settings, maintenance and status.
// It uses the connections of a [client.Client]:
//
//	adm := admin.New(c)
//	q, created, err := adm.CreateQueue(ctx, "orders", admin.CreateQueueOptions{IfNotExists: true})
//
// Unless documented otherwise, methods of [Client] send a request to the active node, of the pair that owns the queue
// in the request or of the home pair. They retry it there and on the other node until a node responds or the context
// ends. Methods of [Node] send a request to one node.
//
// Errors are those of package client and the Err variables of this package. Any method may return
// [client.ErrUnavailable], [client.ErrDenied], [client.ErrUnauthenticated], [client.ErrInternal] and
// [client.ErrClosed]. [client.ErrOutcomeUnknown] means that the request may have been executed. A [Request] makes the
// retries of many calls idempotent.
package admin

import (
	"errors"
	"fmt"
	"unicode/utf8"

	"google.golang.org/grpc"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/client/internal/link"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// Client administers the pair of a [client.Client]. It is safe for concurrent use, unless it was returned by
// [Client.As].
type Client struct {
	conns   link.Conns
	request *Request // may be nil
	atHome  bool     // schedules are not searched for at other pairs
}

// New returns a Client that uses the connections of c. It needs no Close, and must not be used after c is closed.
func New(c *client.Client) *Client { return &Client{conns: link.Of(c)} }

// Errors of administrative calls, in addition to those of package client.
var (
	// ErrNotEmpty is returned by DeleteQueue with ifEmpty when the queue contains messages.
	ErrNotEmpty = link.ErrNotEmpty
	// ErrNoRule is returned when a rule, role, token or quota does not exist.
	ErrNoRule = link.ErrNoRule
	// ErrBusy is returned when the node or the pair already runs another maintenance operation, or the same job.
	ErrBusy = link.ErrBusy
	// ErrRoleChanged is returned when a role change canceled a rewrite. The page file is unchanged.
	ErrRoleChanged = link.ErrRoleChanged
	// ErrCanceled is returned when another call or an operator canceled a rewrite. The page file is unchanged.
	ErrCanceled = link.ErrCanceled
	// ErrNoSpace is returned when free disk space is insufficient.
	ErrNoSpace = link.ErrNoSpace
	// ErrBackupNotFound is returned when the node does not find the backup, or the backup is incomplete.
	ErrBackupNotFound = link.ErrBackupNotFound
	// ErrNoConnection is returned when the node has no connection with the given number.
	ErrNoConnection = link.ErrNoConnection
	// ErrNoJob is returned when no job has the given name.
	ErrNoJob = link.ErrNoJob
	// ErrNoSchedule is returned when no schedule has the given name.
	ErrNoSchedule = link.ErrNoSchedule
	// ErrSeveralSchedules is returned when several other pairs of a fleet have a schedule with the given name, and the
	// home pair of the client has none. Use a client with the addresses of one of these pairs.
	ErrSeveralSchedules = errors.New("several pairs have a schedule with this name")
	// ErrNoPolicy is returned when no policy has the given pattern.
	ErrNoPolicy = link.ErrNoPolicy
	// ErrNoTransaction is returned when the given XID belongs neither to a prepared transaction nor to one of the last
	// 10,000 decided transactions.
	ErrNoTransaction = link.ErrNoTransaction
	// ErrDecided is returned when the transaction coordinator has made the opposite decision on the prepared
	// transaction.
	ErrDecided = link.ErrDecided
	// ErrHeuristic is returned when an operator or txn.prepared-timeout has made the opposite decision.
	ErrHeuristic = link.ErrHeuristic
	// ErrNoPlan is returned when no plan is running.
	ErrNoPlan = link.ErrNoPlan
)

// maxNameBytes is the maximum length of a name, which is checked before a request is sent.
const maxNameBytes = 255

func queues(cc *grpc.ClientConn) pb.QueueServiceClient { return pb.NewQueueServiceClient(cc) }

// checkName checks the length and the encoding of a name. The node checks the characters.
func checkName(what, name string) error {
	if name == "" || len(name) > maxNameBytes || !utf8.ValidString(name) {
		return fmt.Errorf("%w: the name of a %s must have 1 to %d characters of [A-Za-z0-9._/{}-], not %q", client.ErrInvalid,
			what, maxNameBytes, name)
	}
	return nil
}
