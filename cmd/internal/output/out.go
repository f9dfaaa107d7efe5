// SPDX-License-Identifier: Apache-2.0

// Package output prints results: tables and sentences for people, JSON for programs.
package output

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"

	"charm.land/lipgloss/v2"

	"github.com/lockstep-mq/lockstep/store/units"
)

// Printer prints to one writer in one format. It is not safe for concurrent use.
type Printer struct {
	w    io.Writer
	json bool
}

// New creates a printer. It returns an error if format is neither "table" nor "json".
func New(w io.Writer, format string) (*Printer, error) {
	switch format {
	case "table":
		return &Printer{w: w}, nil
	case "json":
		return &Printer{w: w, json: true}, nil
	}
	return nil, fmt.Errorf("--output %q: must be table or json", format)
}

// JSON reports whether the format is JSON.
func (p *Printer) JSON() bool { return p.json }

// Object prints v as one line of JSON. In the table format it prints nothing.
func (p *Printer) Object(v any) error {
	if !p.json {
		return nil
	}
	enc := json.NewEncoder(p.w)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return fmt.Errorf("print: %w", err)
	}
	return nil
}

// Objects prints each element of a list as Object does.
func Objects[T any](p *Printer, list []T) error {
	for _, v := range list {
		if err := p.Object(v); err != nil {
			return err
		}
	}
	return nil
}

// Sentence prints a line of text. In the JSON format it prints nothing.
func (p *Printer) Sentence(format string, args ...any) error {
	if p.json {
		return nil
	}
	return p.write(fmt.Sprintf(format, args...) + "\n")
}

// Result prints v as Object does in the JSON format, and a line of text otherwise.
func (p *Printer) Result(v any, format string, args ...any) error {
	if p.json {
		return p.Object(v)
	}
	return p.Sentence(format, args...)
}

// Raw prints bytes unchanged.
func (p *Printer) Raw(b []byte) error {
	if _, err := p.w.Write(b); err != nil {
		return fmt.Errorf("print: %w", err)
	}
	return nil
}

func (p *Printer) write(s string) error { return p.Raw([]byte(s)) }

// Table prints a table, except in the JSON format. Columns that contain only numbers and columns with a header that
// starts with ">" are aligned to the right.
func (p *Printer) Table(header []string, rows [][]any) error {
	if p.json {
		return nil
	}
	right, widths := make([]bool, len(header)), make([]int, len(header))
	lines := [][]string{make([]string, len(header))}
	for i, h := range header {
		lines[0][i], right[i] = strings.CutPrefix(h, ">")
		right[i] = right[i] || !slices.ContainsFunc(rows, func(r []any) bool { return !isNumber(r[i]) })
	}
	for _, r := range rows {
		line := make([]string, len(r))
		for i, v := range r {
			line[i] = strings.NewReplacer("\t", " ", "\n", " ").Replace(fmt.Sprint(v))
		}
		lines = append(lines, line)
	}
	total := 0
	for i := range header {
		for _, line := range lines {
			widths[i] = max(widths[i], lipgloss.Width(line[i]))
		}
		total += widths[i] + 2
	}
	var b strings.Builder
	for n, line := range lines {
		var text string
		for i, cell := range line {
			blanks := strings.Repeat(" ", widths[i]-lipgloss.Width(cell))
			if right[i] {
				text += blanks + cell + "  "
			} else {
				text += cell + blanks + "  "
			}
		}
		b.WriteString(strings.TrimRight(text, " ") + "\n")
		if n == 0 {
			b.WriteString(strings.Repeat("─", total) + "\n")
		}
	}
	return p.write(b.String())
}

func isNumber(v any) bool {
	kind := reflect.ValueOf(v).Kind()
	return kind >= reflect.Int && kind <= reflect.Float64
}

// Pairs prints names and values, one pair per line, with "-" for an empty value. It prints nothing in the JSON format.
func (p *Printer) Pairs(rows [][2]string) error {
	if p.json {
		return nil
	}
	width := 0
	for _, r := range rows {
		width = max(width, len(r[0]))
	}
	var b strings.Builder
	for _, r := range rows {
		fmt.Fprintf(&b, "%-*s  %s\n", width, r[0], cmp.Or(r[1], "-"))
	}
	return p.write(b.String())
}

// Count formats a number with separators: 1,234,567.
func Count[T ~int | ~int64 | ~uint64 | ~uint32](n T) string { return units.Count(n) }

// Plural formats a number with a noun: "1 message", "2 messages", "0 messages". It forms the plural with an s.
func Plural[T ~int | ~int64 | ~uint64 | ~uint32](n T, thing string) string {
	if n != 1 {
		thing += "s"
	}
	return Count(n) + " " + thing
}

// Bytes formats a size: 512 B, 1.5 KiB, 2.0 GiB.
func Bytes[T ~int | ~int64 | ~uint64](n T) string { return units.Bytes(n) }

// YesNo formats a bool.
func YesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}
