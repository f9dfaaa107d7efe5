// SPDX-License-Identifier: Apache-2.0

package top

import (
	"time"

	"github.com/lockstep-mq/lockstep/cmd/internal/pairstatus"
)

// Screen is the output of `lockstep top --output json`.
type Screen struct {
	At     time.Time         `json:"at"`
	Status pairstatus.Status `json:"status"`
	// Rates contains the rates of the active node; nil if no node is active, or without an earlier response of the same
	// process.
	Rates *pairstatus.Rates `json:"rates"`
	// Queues contains the first queues of the list. QueuesTotal is the number of all queues.
	Queues      []Queue `json:"queues"`
	QueuesTotal int     `json:"queues_total"`
	// QueuesError is the reason why the queues are missing or outdated.
	QueuesError string `json:"queues_error,omitempty"`
}

// Queue is a queue in Screen.
type Queue struct {
	Name      string `json:"name"`
	Messages  uint64 `json:"messages"`
	Bytes     uint64 `json:"bytes"`
	Delayed   uint64 `json:"delayed"`
	Consumers uint64 `json:"consumers"`
	InFlight  uint64 `json:"in_flight"`
	// Activity contains the rates and the age of the oldest message; nil if the node does not report them.
	Activity      *Activity      `json:"activity"`
	Subscriptions []Subscription `json:"subscriptions"`

	facts []fact // further settings and counters
}

// Activity is the activity of a Queue. Unknown values are nil.
type Activity struct {
	Published    *float64 `json:"published_per_second"`
	Delivered    *float64 `json:"delivered_per_second"`
	Acknowledged *float64 `json:"acknowledged_per_second"`
	// OldestSeconds is the age of the oldest message; nil if unknown or if the queue is empty.
	OldestSeconds *float64 `json:"oldest_seconds"`
}

// Subscription is a subscription of a Queue.
type Subscription struct {
	Name      string `json:"name"`
	Backlog   uint64 `json:"backlog"`
	InFlight  uint64 `json:"in_flight"`
	Consumers uint64 `json:"consumers"`
	Filter    string `json:"filter,omitempty"`
}

type fact struct{ name, value string }

type order int

// The orders, in the sequence in which the keys select them.
const (
	byMessages order = iota
	byPublished
	byDelivered
	byAcknowledged
	byAge
	byConsumers
	byName
	orders
)

func (o order) String() string {
	return [...]string{
		"messages", "published", "delivered", "acknowledged", "age of the oldest", "consumers", "name",
	}[o]
}

type query struct {
	contains string
	order    order
	reversed bool // ascending values; for names, descending
	offset   int  // number of queues to skip
	limit    int
}

type page struct {
	query  query
	queues []Queue
	total  int
}
