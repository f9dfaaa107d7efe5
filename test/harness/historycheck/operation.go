// SPDX-License-Identifier: Apache-2.0

package historycheck

import "time"

// FirstApplication is the lowest producer number of applications. Their concurrent publishes may share a batch.
const FirstApplication = 100

// Kind is the kind of an Operation.
type Kind string

// Kinds of operations.
const (
	// KindPublish publishes one message.
	KindPublish Kind = "publish"
	// KindTxn publishes a message to each of two queues, and usually acknowledges a message of a third one.
	KindTxn Kind = "txn"
	// KindAck acknowledges one message.
	KindAck Kind = "ack"
	// KindPurge empties a subscription.
	KindPurge Kind = "purge"
	// KindCreate and KindDelete create and delete a queue.
	KindCreate Kind = "create"
	KindDelete Kind = "delete"
)

// Operation is one operation of an application, including all attempts. A retry after an unknown outcome uses the
// same object. Rejected attempts may also be retried.
type Operation struct {
	Kind    Kind          `json:"kind"`
	Sent    time.Duration `json:"sent_ns"`
	Done    time.Duration `json:"done_ns"`
	Outcome Outcome       `json:"outcome"`
	// Queue is the purged, created or deleted queue, or the queue of Input.
	Queue string `json:"queue,omitempty"`
	// Parts are the messages that the operation publishes.
	Parts []ID `json:"parts,omitempty"`
	// Input is the sequence of the message that the operation acknowledges; 0 if none.
	Input uint64 `json:"input,omitempty"`
	// Count is the number of removed messages in the response to a purge.
	Count uint64 `json:"count,omitempty"`
	// Error is the error message of the last attempt, unless Outcome is Acked.
	Error string `json:"error,omitempty"`
}

// Left is a message that is not acknowledged at the end.
type Left struct {
	Queue    string `json:"queue"`
	Sequence uint64 `json:"sequence"`
}
