// SPDX-License-Identifier: Apache-2.0

// Package conditions defines the conditions that a node reports about itself and its pair: their severity, their
// cause, the recommended action, and the rules that detect them. The status, the health service, the metrics and
// the log are derived from a Book. docs/how-to/respond-to-conditions.md has a section for each kind.
//
// The node periodically fills an Input with its state. Rules derives reports from the Input, and the Book determines
// which conditions are raised or cleared. The package does not depend on gRPC or Prometheus.
//
// To add a condition, add its Kind, its Definition in the table and its rule in this package, and a section in
// respond-to-conditions.md. The tests check that each kind has all of these.
package conditions

import (
	"cmp"
	"fmt"
	"slices"
	"sync"
	"time"
)

// Kind is the name of a kind of condition, in kebab-case. Names are not changed after release 1.0, and are never
// reused.
type Kind string

// Severity is the urgency of a condition.
type Severity int

const (
	// Info is the severity of a condition that requires no action.
	Info Severity = iota + 1
	// Warning is the severity of a condition that requires action soon: something is at risk or restricted.
	Warning
	// Critical is the severity of a condition that requires immediate action: messages are refused or at risk.
	Critical
)

// String returns the name that is used in the status, the metrics and the log.
func (s Severity) String() string {
	switch s {
	case Info:
		return "info"
	case Warning:
		return "warning"
	case Critical:
		return "critical"
	default:
		return fmt.Sprintf("severity-%d", int(s))
	}
}

// Scope specifies whether a condition concerns one node or the pair.
type Scope int

const (
	// OfNode is the scope of a condition of one node.
	OfNode Scope = iota + 1
	// OfPair is the scope of a condition of the pair.
	OfPair
)

// Definition describes a kind of condition.
type Definition struct {
	Kind     Kind
	Severity Severity
	Scope    Scope
	// After is the time for which the condition must exist without interruption before it is raised.
	After time.Duration
	// Alarm is the name of the condition in GetStatusResponse.alarms, if it differs from Kind.
	Alarm string
	// Cause explains the condition and its consequences. Action is the recommended action.
	Cause  string
	Action string
}

// AlarmName returns the name of the condition in GetStatusResponse.alarms.
func (d *Definition) AlarmName() string { return cmp.Or(d.Alarm, string(d.Kind)) }

// Node identifies the node of a condition. The zero value represents the pair.
type Node struct{ ID, Name string }

// Report is a condition detected by a node. Book.Set ignores kinds without a definition.
type Report struct {
	Kind    Kind
	Node    Node
	Details string
	// Since is the start time. If it is zero, the time of the first report is used. A report with a start time is
	// raised immediately, regardless of Definition.After.
	Since time.Time
	// By is the ID of the node that detected the condition. It is empty for the node to which the Book belongs.
	By string
}

// Condition is a condition that is currently raised.
type Condition struct {
	Definition *Definition
	Node       Node
	Details    string

	Since time.Time
	// By is the ID of the node that detected the condition. It is empty for the node to which the Book belongs.
	By string
}

type key struct {
	kind Kind
	node string
}

// Book contains the conditions of a node, its pair and the other node. It is safe for concurrent use.
type Book struct {
	onChange func(c Condition, raised bool)

	mu    sync.Mutex // guards the fields below
	known map[key]*entry
}

type entry struct {
	condition Condition
	raised    bool
}

// NewBook creates an empty Book. If onChange is not nil, Set calls it for each condition that is raised or
// cleared. onChange must not use the Book.
func NewBook(onChange func(c Condition, raised bool)) *Book {
	return &Book{onChange: onChange, known: make(map[key]*entry)}
}

// Set replaces all reports. Conditions that are no longer reported are cleared.
func (b *Book) Set(now time.Time, reports []Report) {
	b.mu.Lock()
	defer b.mu.Unlock()
	seen := make(map[key]bool, len(reports))
	for i := range reports {
		r := &reports[i]
		d := Find(r.Kind)
		k := key{r.Kind, r.Node.ID}
		if d == nil || seen[k] {
			continue
		}
		seen[k] = true
		b.update(now, k, d, r)
	}
	for k, e := range b.known {
		if seen[k] {
			continue
		}
		delete(b.known, k)
		if e.raised {
			b.changed(e.condition, false)
		}
	}
}

func (b *Book) update(now time.Time, k key, d *Definition, r *Report) {
	e := b.known[k]
	if e == nil {
		e = &entry{condition: Condition{Definition: d, Since: now}}
		b.known[k] = e
	}
	e.condition.Node, e.condition.Details, e.condition.By = r.Node, r.Details, r.By
	if !r.Since.IsZero() {
		e.condition.Since = r.Since
	}
	if !e.raised && (!r.Since.IsZero() || now.Sub(e.condition.Since) >= d.After) {
		e.raised = true
		b.changed(e.condition, true)
	}
}

func (b *Book) changed(c Condition, raised bool) {
	if b.onChange != nil {
		b.onChange(c, raised)
	}
}

// Now returns the raised conditions, ordered by severity (most severe first) and then by age (oldest first).
func (b *Book) Now() []Condition {
	b.mu.Lock()
	defer b.mu.Unlock()
	var all []Condition
	for _, e := range b.known {
		if e.raised {
			all = append(all, e.condition)
		}
	}
	slices.SortFunc(all, func(x, y Condition) int {
		return cmp.Or(
			cmp.Compare(y.Definition.Severity, x.Definition.Severity), x.Since.Compare(y.Since),
			cmp.Compare(x.Definition.Kind, y.Definition.Kind), cmp.Compare(x.Node.ID, y.Node.ID),
		)
	})
	return all
}

// Worst returns the highest severity of the conditions. It returns 0 without conditions.
func Worst(all []Condition) Severity {
	worst := Severity(0)
	for i := range all {
		worst = max(worst, all[i].Definition.Severity)
	}
	return worst
}

// Text returns the details, the cause and the action of a condition in one line.
func (c *Condition) Text() string {
	text := c.Definition.Cause
	if c.Details != "" {
		text = c.Details + ". " + text
	}
	return text + " " + c.Definition.Action
}
