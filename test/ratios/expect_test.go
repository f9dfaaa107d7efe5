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
	// Measured states, as text, when and on which machine the values of the ratios were measured.
	Measured string `json:"measured"`
	// Runs are executed in this order in each round.
	Runs   []run   `json:"runs"`
	Ratios []ratio `json:"ratios"`
}

// run is a measurement command.
type run struct {
	Name string `json:"name"`
	// Command contains the arguments of `lockstep-lab`, without --output and --peers.
	Command string `json:"command"`
	// Peer is the peer that must be installed; empty for none.
	Peer string `json:"peer,omitempty"`
}

// ratio is a quotient of two values measured in the same round, and its valid range.
type ratio struct {
	Name string `json:"name"`
	Of   value  `json:"of"`
	// To is the divisor of Of; nil if Of is itself a ratio.
	To *value `json:"to,omitempty"`
	// Lowest and Highest are the inclusive limits of the range.
	Lowest  float64 `json:"lowest"`
	Highest float64 `json:"highest"`
	// Measured are the medians from which the range was derived.
	Measured []float64 `json:"measured"`
	// Figure is the text outside the table in docs/decisions/measurements.md that contains this ratio, and Text is the
	// number in it. Figure is empty if only the table contains the ratio.
	Figure string  `json:"figure,omitempty"`
	Text   float64 `json:"documented,omitempty"`
}

// value selects a field in the output of a run.
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
	wrong(e.Measured == "", "measured must state when and where the values were measured")
	wrong(len(e.Ratios) == 0, "no ratios")
	used, names := map[string]bool{}, map[string]bool{}
	for _, r := range e.Ratios {
		wrong(r.Name == "" || names[r.Name], "name %q is empty or duplicate", r.Name)
		names[r.Name] = true
		wrong(r.Lowest <= 0 || r.Lowest >= r.Highest, "%s: %v to %v is not a range above 0", r.Name, r.Lowest, r.Highest)
		wrong(len(r.Measured) < 2, "%s: the range must be based on at least two measurements", r.Name)
		for _, m := range r.Measured {
			wrong(r.verdict(m) != holds, "%s: measured value %v is out of range", r.Name, m)
		}
		if r.Figure != "" || r.Text != 0 {
			wrong(r.verdict(r.Text) != holds, "%s: documented value %v is out of range", r.Name, r.Text)
			wrong(!strings.Contains(r.Figure, fmt.Sprint(r.Text)), "%s: %q does not contain %v", r.Name, r.Figure, r.Text)
		}
		for _, v := range r.values() {
			used[v.Run] = true
			wrong(e.run(v.Run) == nil, "%s: run %q does not exist", r.Name, v.Run)
			for name, want := range v.Line {
				_, object := want.(map[string]any)
				_, list := want.([]any)
				wrong(object || list, "%s: %s must be a string, number or boolean", r.Name, name)
			}
			wrong(v.Field == "" || len(v.Line) == 0, "%s: line and field are required", r.Name)
		}
	}
	for i, r := range e.Runs {
		wrong(e.run(r.Name) != &e.Runs[i], "run %q is duplicate", r.Name)
		wrong(!used[r.Name], "run %q is not used by any ratio", r.Name)
		wrong(r.Command == "" || strings.Contains(r.Command, "--output"), "%s: %q is not a valid command", r.Name, r.Command)
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

// values returns the dividend and, if there is one, the divisor.
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
	return tooLow // or NaN
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
