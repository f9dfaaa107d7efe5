// SPDX-License-Identifier: Apache-2.0

package ratios

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// expectations is the content of ratios.json.
type expectations struct {
	// Measured is the date and machine of the figures of the ratios, as text.
	Measured string `json:"measured"`
	// Runs are executed in this order, in each round.
	Runs   []run   `json:"runs"`
	Ratios []ratio `json:"ratios"`
}

// run is a measurement command.
type run struct {
	Name string `json:"name"`
	// Command contains the arguments of `lockstep-lab`, without --output and --peers.
	Command string `json:"command"`
	// Peer that must be installed; empty for most.
	Peer string `json:"peer,omitempty"`
}

// ratio is a quotient of two values measured in the same round, and its valid range.
type ratio struct {
	Name string `json:"name"`
	Of   value  `json:"of"`
	// To is the divisor of Of; nil if Of is already a ratio.
	To *value `json:"to,omitempty"`
	// Lowest and Highest are accepted as well.
	Lowest  float64 `json:"lowest"`
	Highest float64 `json:"highest"`
	// Measured are the medians from which the range was derived.
	Measured []float64 `json:"measured"`
	// Figure is the text of docs/decisions/measurements.md, outside of the table of these ratios, with the same
	// ratio, and Text the number in it; empty if only the table has it.
	Figure string  `json:"figure,omitempty"`
	Text   float64 `json:"documented,omitempty"`
}

// value is a field of the line that a run prints.
type value struct {
	Run string `json:"run"`
	// Line selects exactly one line, by these fields and values.
	Line map[string]any `json:"line"`
	// Field is a path of names and list indexes, separated by dots.
	Field string `json:"field"`
}

// parse parses expectations and returns all errors in them.
func parse(data []byte) (*expectations, error) {
	var e expectations
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(&e); err != nil {
		return nil, fmt.Errorf("ratios.json: %w", err)
	}
	var errs []error
	wrong := func(is bool, format string, args ...any) {
		if is {
			errs = append(errs, fmt.Errorf("ratios.json: "+format, args...))
		}
	}
	wrong(e.Measured == "", "it does not state when and where it was measured")
	wrong(len(e.Ratios) == 0, "there is no ratio")
	used, names := map[string]bool{}, map[string]bool{}
	for _, r := range e.Ratios {
		wrong(r.Name == "" || names[r.Name], "the name %q is empty or there twice", r.Name)
		names[r.Name] = true
		wrong(r.Lowest <= 0 || r.Lowest >= r.Highest, "%s: %v to %v is no range above 0", r.Name, r.Lowest, r.Highest)
		wrong(len(r.Measured) < 2, "%s: its range was not measured at least twice", r.Name)
		for _, m := range r.Measured {
			wrong(r.verdict(m) != holds, "%s: %v, which was measured, is out of its range", r.Name, m)
		}
		if r.Figure != "" || r.Text != 0 {
			wrong(r.verdict(r.Text) != holds, "%s: %v, which is documented, is out of its range", r.Name, r.Text)
			wrong(!strings.Contains(r.Figure, fmt.Sprint(r.Text)), "%s: %q does not contain %v", r.Name, r.Figure, r.Text)
		}
		for _, v := range r.values() {
			used[v.Run] = true
			wrong(e.run(v.Run) == nil, "%s: there is no run %q", r.Name, v.Run)
			for name, want := range v.Line {
				_, object := want.(map[string]any)
				_, list := want.([]any)
				wrong(object || list, "%s: %s is no plain value", r.Name, name)
			}
			wrong(v.Field == "" || len(v.Line) == 0, "%s: neither line nor field may be empty", r.Name)
		}
	}
	for i, r := range e.Runs {
		wrong(e.run(r.Name) != &e.Runs[i], "the run %q is there twice", r.Name)
		wrong(!used[r.Name], "no ratio needs the run %q", r.Name)
		wrong(r.Command == "" || strings.Contains(r.Command, "--output"), "%s: %q is no command", r.Name, r.Command)
	}
	return &e, errors.Join(errs...)
}

// run returns the run with the given name, or nil.
func (e *expectations) run(name string) *run {
	i := slices.IndexFunc(e.Runs, func(r run) bool { return r.Name == name })
	if i < 0 {
		return nil
	}
	return &e.Runs[i]
}

// values returns one value, or the two that are divided.
func (r *ratio) values() []value {
	if r.To == nil {
		return []value{r.Of}
	}
	return []value{r.Of, *r.To}
}

// verdict is the result of a ratio.
type verdict string

const (
	holds   verdict = "holds"
	tooLow  verdict = "TOO LOW"
	tooHigh verdict = "TOO HIGH"
	skipped verdict = "skipped"
	failed  verdict = "FAILED"
)

func (r *ratio) verdict(measured float64) verdict {
	switch {
	case measured >= r.Lowest && measured <= r.Highest:
		return holds
	case measured > r.Highest:
		return tooHigh
	}
	return tooLow // or not a number
}

// documentation returns the table for docs/decisions/measurements.md.
func (e *expectations) documentation() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s.\n\n", e.Measured)
	b.WriteString("| Ratio | Measured | Range | `lockstep-lab …` |\n|---|---|---|---|\n")
	for _, r := range e.Ratios {
		measured := make([]string, 0, len(r.Measured))
		for _, m := range r.Measured {
			measured = append(measured, fmt.Sprintf("%.2f", m))
		}
		commands := []string{}
		for _, v := range r.values() {
			if c := "`" + e.run(v.Run).Command + "`"; !slices.Contains(commands, c) {
				commands = append(commands, c)
			}
		}
		fmt.Fprintf(&b, "| %s | %s | %.2f to %.2f | %s |\n", r.Name, strings.Join(measured, ", "), r.Lowest, r.Highest,
			strings.Join(commands, " and "))
	}
	return b.String()
}
