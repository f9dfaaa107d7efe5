// SPDX-License-Identifier: Apache-2.0

package top

import (
	"time"

	"github.com/lockstep-mq/lockstep/cmd/internal/nodes"
)

// Picture is what is shown, for programs.
type Picture struct {
	At     time.Time    `json:"at"`
	Status nodes.Status `json:"status"`
	// Rates of the active; nil if none is, or if it has become active just now.
	Rates *nodes.Rates `json:"rates"`
	// Queues, as many as were asked for, and how many there are.
	Queues      []Queue `json:"queues"`
	QueuesTotal int     `json:"queues_total"`
	// QueuesError says why they are not there, or are old.
	QueuesError string `json:"queues_error,omitempty"`
}

// Queue is one queue.
type Queue struct {
	Name      string `json:"name"`
	Messages  uint64 `json:"messages"`
	Bytes     uint64 `json:"bytes"`
	Delayed   uint64 `json:"delayed"`
	Consumers uint64 `json:"consumers"`
	InFlight  uint64 `json:"in_flight"`
	// Activity is nil for a node that does not tell it.
	Activity      *Activity      `json:"activity"`
	Subscriptions []Subscription `json:"subscriptions"`

	facts []fact // what else is to be known of it
}

// Activity is what happens in a queue. What is not known, or not yet, is nil.
type Activity struct {
	Published    *float64 `json:"published_per_second"`
	Delivered    *float64 `json:"delivered_per_second"`
	Acknowledged *float64 `json:"acknowledged_per_second"`
	// OldestSeconds is the age of the oldest message; nil also if there is none.
	OldestSeconds *float64 `json:"oldest_seconds"`
}

// Subscription is one of a queue.
type Subscription struct {
	Name      string `json:"name"`
	Backlog   uint64 `json:"backlog"`
	InFlight  uint64 `json:"in_flight"`
	Consumers uint64 `json:"consumers"`
	Filter    string `json:"filter,omitempty"`
}

// fact is a line of the page of one queue.
type fact struct{ name, value string }

// order is what queues are sorted by.
type order int

// The orders, as the keys go through them.
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

// query says which queues are wanted.
type query struct {
	contains string
	order    order
	reversed bool // the smallest first; of names, the last
	offset   int  // how many to leave out
	limit    int
}

// page is the answer to a query.
type page struct {
	query  query
	queues []Queue
	total  int
}
