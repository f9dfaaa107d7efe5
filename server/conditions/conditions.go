// SPDX-License-Identifier: Apache-2.0

// Package conditions is the one list of what an operator may have to know about a node or its pair: what each condition
// means, how serious it is, and what to do. Status, health service, metrics and log all tell what a Book holds, and
// docs/how-to/respond-to-conditions.md has a section for each kind.
//
// The package finds out nothing by itself: the node reports what it knows with Book.Set, all at once and again and
// again, and the Book knows what is new and what is over. It knows neither gRPC nor Prometheus.
package conditions

import (
	"cmp"
	"fmt"
	"slices"
	"sync"
	"time"
)

// Kind names a condition, in kebab-case. A name is never changed, nor used again for something else.
type Kind string

// Severity tells how soon an operator should look.
type Severity int

// The severities.
const (
	// Info is nothing to worry about, but good to know.
	Info Severity = iota + 1
	// Warning asks an operator to look in time: something is at risk, and nothing is lost or refused yet.
	Warning
	// Critical asks an operator to look now: messages are refused or at risk.
	Critical
)

// String is the name of a severity in status, metrics and log.
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

// Scope is what a condition is about.
type Scope int

// The scopes.
const (
	// OfNode is a condition of one node. The other node tells it, too.
	OfNode Scope = iota + 1
	// OfPair is a condition of the pair; each node finds out by itself.
	OfPair
)

// Definition describes a kind of condition.
type Definition struct {
	// Kind is its name.
	Kind Kind
	// Severity of every condition of this kind.
	Severity Severity
	// Scope is what it is about.
	Scope Scope
	// After is how long it has to last, without interruption, before it is told.
	After time.Duration
	// Alarm is the name that GetStatusResponse.alarms has for it, where that was another one before there were
	// conditions.
	Alarm string
	// Cause says what is the case and what that means.
	Cause string
	// Action says what to do.
	Action string
}

// AlarmName is the name in GetStatusResponse.alarms.
func (d *Definition) AlarmName() string { return cmp.Or(d.Alarm, string(d.Kind)) }

// Node names the node that a condition is about, by id and name. The zero value stands for the pair.
type Node struct{ ID, Name string }

// Report is what a node found to be the case.
type Report struct {
	// Kind of the condition. One that the table does not have is not told.
	Kind Kind
	// Node that it is about; the zero value for the pair.
	Node Node
	// Details say what exactly is the case here and now.
	Details string
	// Since when; zero if that is not known: then since the first report. One with a time is told at once, whatever
	// Definition.After says, because its reporter has seen to that.
	Since time.Time
	// By is the id of the node that found it; empty for the one that has the book.
	By string
}

// Condition is something that is the case now.
type Condition struct {
	// Definition of its kind.
	Definition *Definition
	// Node that it is about; the zero value for the pair.
	Node Node
	// Details say what exactly is the case.
	Details string
	// Since when.
	Since time.Time
	// By is the id of the node that found it; empty for the one that has the book.
	By string
}

// key tells conditions apart.
type key struct {
	kind Kind
	node string
}

// Book holds the conditions of a node, its pair and the other node. Its methods may be called from any goroutine.
type Book struct {
	onChange func(c Condition, raised bool)

	mu    sync.Mutex // guards what follows
	known map[key]*entry
}

// entry is what is reported; told once it has lasted long enough.
type entry struct {
	condition Condition
	told      bool
}

// NewBook makes an empty book. onChange, if not nil, is called for each condition that is raised or cleared, one after
// the other, by the caller of Set; it must not use the book.
func NewBook(onChange func(c Condition, raised bool)) *Book {
	return &Book{onChange: onChange, known: make(map[key]*entry)}
}

// Set says what is the case now: everything that was found at the time `now`. What is not among it is over.
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
		b.take(now, k, d, r)
	}
	for k, e := range b.known {
		if seen[k] {
			continue
		}
		delete(b.known, k)
		if e.told {
			b.changed(e.condition, false)
		}
	}
}

// take notes one report. mu is held.
func (b *Book) take(now time.Time, k key, d *Definition, r *Report) {
	e := b.known[k]
	if e == nil {
		e = &entry{condition: Condition{Definition: d, Since: now}}
		b.known[k] = e
	}
	e.condition.Node, e.condition.Details, e.condition.By = r.Node, r.Details, r.By
	if !r.Since.IsZero() {
		e.condition.Since = r.Since
	}
	if !e.told && (!r.Since.IsZero() || now.Sub(e.condition.Since) >= d.After) {
		e.told = true
		b.changed(e.condition, true)
	}
}

func (b *Book) changed(c Condition, raised bool) {
	if b.onChange != nil {
		b.onChange(c, raised)
	}
}

// Now returns the conditions, the most serious first, the oldest first among those.
func (b *Book) Now() []Condition {
	b.mu.Lock()
	defer b.mu.Unlock()
	var all []Condition
	for _, e := range b.known {
		if e.told {
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

// Worst is the highest severity among conditions; 0 if there are none.
func Worst(all []Condition) Severity {
	worst := Severity(0)
	for i := range all {
		worst = max(worst, all[i].Definition.Severity)
	}
	return worst
}

// Text says everything about a condition in one line: what is the case, what that means and what to do.
func (c *Condition) Text() string {
	text := c.Definition.Cause
	if c.Details != "" {
		text = c.Details + ". " + text
	}
	return text + " " + c.Definition.Action
}
