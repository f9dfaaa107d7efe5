// SPDX-License-Identifier: Apache-2.0

package ratios

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
)

// runTimeout is the limit for one run, which takes at most two minutes on an idle machine.
const runTimeout = 15 * time.Minute

// line is one JSON object that a run printed.
type line map[string]any

// measurer executes the runs of expectations.
type measurer struct {
	program []string // prefix of each command
	peers   string   // directory of the peers; empty for none
	keep    string   // directory for the output of the runs; empty to discard it
	log     func(format string, args ...any)
}

// outcome is the result of a ratio.
type outcome struct {
	ratio    *ratio
	rounds   []float64 // ratios of the rounds, in order
	verdict  verdict
	measured float64 // median of rounds
	reason   error   // cause of a skipped or failed measurement
}

// errSkipped marks runs that are skipped on purpose.
var errSkipped = errors.New("skipped")

// measure executes the given number of rounds of all runs, and returns the outcome of each ratio. A failed run fails
// the ratios that depend on it.
func (m *measurer) measure(ctx context.Context, e *expectations, rounds int) []outcome {
	all := make([]outcome, len(e.Ratios))
	for i := range e.Ratios {
		all[i].ratio = &e.Ratios[i]
	}
	for round := range rounds {
		lines, reason := map[string][]line{}, map[string]error{}
		for _, r := range e.Runs {
			start := time.Now()
			lines[r.Name], reason[r.Name] = m.do(ctx, r, round+1)
			m.log("round %d, %s: %v, %s", round+1, r.Name, time.Since(start).Round(time.Second),
				describe(reason[r.Name], "done"))
		}
		for i := range all {
			quotient, err := all[i].ratio.quotient(lines, reason)
			if err == nil {
				all[i].rounds = append(all[i].rounds, quotient)
			} else if all[i].reason == nil {
				all[i].reason = err
			}
		}
	}
	for i := range all {
		all[i].check()
	}
	return all
}

func describe(err error, otherwise string) string {
	if err == nil {
		return otherwise
	}
	return err.Error()
}

// check computes the median and sets the verdict.
func (o *outcome) check() {
	switch {
	case errors.Is(o.reason, errSkipped):
		o.verdict = skipped
	case o.reason != nil || len(o.rounds) == 0:
		o.verdict = failed
	default:
		o.measured = median(o.rounds)
		o.verdict = o.ratio.verdict(o.measured)
	}
}

// median returns the middle value, or the mean of the two middle values.
func median(values []float64) float64 {
	s := slices.Sorted(slices.Values(values))
	return (s[(len(s)-1)/2] + s[len(s)/2]) / 2
}

// do executes one run and returns its output.
func (m *measurer) do(ctx context.Context, r run, round int) ([]line, error) {
	args := slices.Concat(m.program[1:], strings.Fields(r.Command), []string{"--output", "json"})
	if r.Peer != "" {
		if _, err := os.Stat(filepath.Join(m.peers, r.Peer, "run")); m.peers == "" || err != nil {
			return nil, fmt.Errorf("%w: %s is not installed in LOCKSTEP_PEERS", errSkipped, r.Peer)
		}
		args = append(args, "--peers", m.peers)
	}
	ctx, cancel := context.WithTimeout(ctx, runTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, m.program[0], args...)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) } // lets the program stop its nodes
	cmd.WaitDelay = time.Minute
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if m.keep != "" {
		name := filepath.Join(m.keep, fmt.Sprintf("%s.%d.json", r.Name, round))
		if err := os.WriteFile(name, out, 0o600); err != nil {
			return nil, fmt.Errorf("%s: %w", r.Name, err)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("lockstep-lab %s: %w: %s", r.Command, err, bytes.TrimSpace(stderr.Bytes()))
	}
	return decode(out)
}

// decode decodes a sequence of JSON objects.
func decode(out []byte) (lines []line, err error) {
	for d := json.NewDecoder(bytes.NewReader(out)); d.More(); {
		var l line
		if err := d.Decode(&l); err != nil {
			return nil, fmt.Errorf("output is not JSON: %w", err)
		}
		lines = append(lines, l)
	}
	return lines, nil
}

// quotient returns the ratio of one round. reason contains the errors of the failed runs, by name.
func (r *ratio) quotient(lines map[string][]line, reason map[string]error) (float64, error) {
	result := 1.0
	for i, v := range r.values() {
		if err := reason[v.Run]; err != nil {
			return 0, err
		}
		found, err := v.in(lines[v.Run])
		if err != nil {
			return 0, fmt.Errorf("%s: %w", v.Run, err)
		}
		if i == 0 {
			result = found
		} else {
			result /= found
		}
	}
	return result, nil
}

// in returns the value from the output of its run. A value that is not above 0 is an error.
func (v *value) in(lines []line) (found float64, err error) {
	matches := 0
	for _, l := range lines {
		if !l.has(v.Line) {
			continue
		}
		matches++
		var at any = map[string]any(l)
		for name := range strings.SplitSeq(v.Field, ".") {
			at = inside(at, name)
		}
		if found, _ = at.(float64); found <= 0 || math.IsInf(found, 0) {
			return 0, fmt.Errorf("%s in the line with %v is %v, not a number above 0", v.Field, v.Line, at)
		}
	}
	if matches != 1 {
		return 0, fmt.Errorf("%d of %d lines have %v, want 1", matches, len(lines), v.Line)
	}
	return found, nil
}

// inside returns the named field of an object, or the list element with that index; nil if it does not exist.
func inside(at any, name string) any {
	switch at := at.(type) {
	case map[string]any:
		return at[name]
	case []any:
		if i, err := strconv.Atoi(name); err == nil && i >= 0 && i < len(at) {
			return at[i]
		}
	}
	return nil
}

// has reports whether the line has all given fields with these values. A missing field counts as false.
func (l line) has(fields map[string]any) bool {
	for name, want := range fields {
		if got := l[name]; got != want && (want != false || got != nil) {
			return false
		}
	}
	return true
}

// table returns the outcomes as a table, and the number of failures.
func table(all []outcome) (text string, failures int) {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "ratio\tlowest\thighest\tmeasured\trounds\tverdict")
	for _, o := range all {
		measured, rounds := "", make([]string, 0, len(o.rounds))
		if o.measured > 0 {
			measured = fmt.Sprintf("%.2f", o.measured)
		}
		for _, r := range o.rounds {
			rounds = append(rounds, fmt.Sprintf("%.2f", r))
		}
		reported := string(o.verdict)
		if o.reason != nil {
			reported += ": " + strings.TrimPrefix(o.reason.Error(), string(skipped)+": ")
		}
		if o.verdict != holds && o.verdict != skipped {
			failures++
		}
		fmt.Fprintf(w, "%s\t%.2f\t%.2f\t%s\t%s\t%s\n", o.ratio.Name, o.ratio.Lowest, o.ratio.Highest, measured,
			strings.Join(rounds, " "), reported)
	}
	_ = w.Flush() // into memory
	return b.String(), failures
}
