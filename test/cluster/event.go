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

// Names of a node's events. Failover events have the fields code (failover.Code), lsn (the end of the log) and, if
// the node has read the cluster record, config, term and in_sync.
const (
	// EventRole is a change of the node's role. Its fields are from, to and reason.
	EventRole = "role changed"
	// EventDropped is logged by the active when a standby leaves the in-sync set. Its field is standby.
	EventDropped = "standby dropped"
	// EventCondition is a condition that a node reports. Its field is condition.
	EventCondition = "condition raised"
)

// eventColumns separates the columns of a log line in the text format.
const eventColumns = "  "

// eventPoll is the interval at which WaitEvent reads new log lines.
const eventPoll = 10 * time.Millisecond

// Event is a line of a node's log. Tests wait for events to check the order of state changes, because polling the
// status misses short-lived states.
type Event struct {
	// Name is the line's message.
	Name string
	// Fields are the line's structured fields; numbers are json.Number.
	Fields map[string]any
	// End is the position of the next line, for WaitEvent.
	End int
}

// Is reports whether the field exists and its content, formatted by fmt.Sprint, equals value.
func (e Event) Is(field, value string) bool {
	v, ok := e.Fields[field]
	return ok && fmt.Sprint(v) == value
}

// Number returns the value of a numeric field, or 0 if it is missing.
func (e Event) Number(field string) uint64 {
	var n uint64
	if v, ok := e.Fields[field].(json.Number); ok {
		_, _ = fmt.Sscan(v.String(), &n)
	}
	return n
}

// WaitEvent waits for the first event with the given name for which fits returns true, at or after the byte position
// from in the node's log. If fits is nil, every event matches. To continue after an event, pass its End as from.
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

// Events returns the events in the node's log from a byte position on.
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

// nextEvent parses the log line at the byte position from, and returns the position of the next line. If the line is
// missing or incomplete, next is 0.
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
	// The columns are time, level, the logger's name if any, message, and fields as JSON.
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
