// SPDX-License-Identifier: Apache-2.0

package historycheck

import "time"

// FirstApplication is the lowest number of the producer of a message that an application published. What applications
// publish at the same time may be one batch of the client.
const FirstApplication = 100

// Kind of an Operation.
type Kind string

// The kinds of operations.
const (
	// KindPublish is one message.
	KindPublish Kind = "publish"
	// KindTxn is a message for each of two queues and, as a rule, the acknowledgement of a message of a third one.
	KindTxn Kind = "txn"
	// KindAck is the acknowledgement of one message.
	KindAck Kind = "ack"
	// KindPurge empties a subscription.
	KindPurge Kind = "purge"
	// KindCreate and KindDelete make and remove a queue.
	KindCreate Kind = "create"
	KindDelete Kind = "delete"
)

// Operation is one thing that an application wanted, with all attempts at it: what ended without an answer was repeated
// with the same object, and what was refused perhaps as well.
type Operation struct {
	Kind    Kind          `json:"kind"`
	Sent    time.Duration `json:"sent_ns"`
	Done    time.Duration `json:"done_ns"`
	Outcome Outcome       `json:"outcome"`
	// Queue is the one that was purged, made or deleted, or whose consumed subscription had the message Input
	// acknowledged.
	Queue string `json:"queue,omitempty"`
	// Parts are the messages of a transaction.
	Parts []ID `json:"parts,omitempty"`
	// Input is the sequence of the message that it acknowledges; 0 for none.
	Input uint64 `json:"input,omitempty"`
	// Count is how many messages a purge was told that it removed.
	Count uint64 `json:"count,omitempty"`
	// Error is the last one in words, unless acked.
	Error string `json:"error,omitempty"`
}

// Left is a message that a subscription has still to acknowledge at the end.
type Left struct {
	Queue    string `json:"queue"`
	Sequence uint64 `json:"sequence"`
}
