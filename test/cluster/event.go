// SPDX-License-Identifier: Apache-2.0

//go:build unix

package cluster

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"time"
)

// Events of a node. Those of failover have the fields code (failover.Code), lsn (the end of the log) and, if the node
// knows the cluster record, config, term and in_sync.
const (
	// EventRole is a change of the node's role: from, to, reason.
	EventRole = "role changed"
	// EventDropped is a standby that left the in-sync set, logged by the active: standby.
	EventDropped = "standby dropped"
	// EventCondition is a condition that a node reports: condition.
	EventCondition = "condition"
)

// eventColumns is between the columns of a line of the log, in the text format.
const eventColumns = "  "

// eventPoll is how often WaitEvent reads what was added to the log.
const eventPoll = 10 * time.Millisecond

// Event is a line of a node's log. Tests that compare the order of events wait for these, and not for a time: a state
// that holds for a moment is missed by who asks for the status.
type Event struct {
	// Name is the line's message.
	Name string
	// Fields are its structured fields; numbers are json.Number.
	Fields map[string]any
	// End is where the next line begins, for WaitEvent.
	End int
}

// Is reports whether a field has a value, as it is printed.
func (e Event) Is(field, value string) bool {
	v, ok := e.Fields[field]
	return ok && fmt.Sprint(v) == value
}

// Number returns a field that is a number, and 0 if there is none.
func (e Event) Number(field string) uint64 {
	var n uint64
	if v, ok := e.Fields[field].(json.Number); ok {
		_, _ = fmt.Sscan(v.String(), &n)
	}
	return n
}

// WaitEvent waits for the first event of a name that fits, from a position of the node's log on. A nil fits takes each.
// The next event is found from its End on.
func (n *Node) WaitEvent(ctx context.Context, from int, name string, fits func(Event) bool) (Event, error) {
	for {
		log, err := os.ReadFile(n.LogFile())
		if err != nil {
			return Event{}, fmt.Errorf("wait for the event %q: %w", name, err)
		}
		for e, at := nextEvent(log, from); at > 0; e, at = nextEvent(log, from) {
			from = at
			if e.Name == name && (fits == nil || fits(e)) {
				return e, nil
			}
		}
		select {
		case <-time.After(eventPoll):
		case <-ctx.Done():
			return Event{}, fmt.Errorf("wait for the event %q of node %s: %w", name, n.Name, ctx.Err())
		}
	}
}

// Events returns the events in the node's log from a position on.
func (n *Node) Events(from int) ([]Event, error) {
	log, err := os.ReadFile(n.LogFile())
	if err != nil {
		return nil, fmt.Errorf("events of node %s: %w", n.Name, err)
	}
	var all []Event
	for e, at := nextEvent(log, from); at > 0; e, at = nextEvent(log, at) {
		all = append(all, e)
	}
	return all, nil
}

// nextEvent reads the whole line at a position, and returns where the next one begins; 0 if there is none yet.
func nextEvent(log []byte, from int) (e Event, next int) {
	if from >= len(log) {
		return Event{}, 0
	}
	length := bytes.IndexByte(log[from:], '\n')
	if length < 0 {
		return Event{}, 0
	}
	line := log[from : from+length]
	e.End = from + length + 1
	// Time, level, the logger's name if it has one, message, and fields as JSON.
	if at := bytes.Index(line, []byte(eventColumns+"{")); at >= 0 {
		d := json.NewDecoder(bytes.NewReader(line[at:]))
		d.UseNumber()
		if d.Decode(&e.Fields) == nil {
			line = line[:at]
		}
	}
	e.Name = string(line[bytes.LastIndex(line, []byte(eventColumns))+1:])
	e.Name = strings.TrimSpace(e.Name)
	return e, e.End
}
