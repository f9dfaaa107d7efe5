// SPDX-License-Identifier: Apache-2.0

package top

import (
	"strings"
	"unicode/utf8"

	"charm.land/lipgloss/v2"
)

// painter applies styles. It uses only the 16 colours of the terminal, which follow its theme. Bubble Tea removes the
// colours if the terminal has none, or if NO_COLOR is set.
type painter struct {
	plain bool // no styles, for a file
}

func (p painter) with(s lipgloss.Style, text string) string {
	if p.plain || text == "" {
		return text
	}
	return s.Render(text)
}

func (p painter) bold(text string) string { return p.with(lipgloss.NewStyle().Bold(true), text) }
func (p painter) dim(text string) string  { return p.with(lipgloss.NewStyle().Faint(true), text) }
func (p painter) chosen(text string) string {
	return p.with(lipgloss.NewStyle().Reverse(true), text)
}

func (p painter) good(text string) string {
	return p.with(lipgloss.NewStyle().Foreground(lipgloss.Green), text)
}

func (p painter) warning(text string) string {
	return p.with(lipgloss.NewStyle().Bold(true).Foreground(lipgloss.Yellow), text)
}

func (p painter) critical(text string) string {
	return p.with(lipgloss.NewStyle().Bold(true).Foreground(lipgloss.Red), text)
}

func (p painter) bySeverity(severity, text string) string {
	switch severity {
	case "critical":
		return p.critical(text)
	case "warning":
		return p.warning(text)
	}
	return text
}

func fit(text string, columns int) string {
	if utf8.RuneCountInString(text) <= columns {
		return text
	}
	if columns < 1 {
		return ""
	}
	return string([]rune(text)[:columns-1]) + "…"
}

// column is a column of a table. Columns that do not fit are omitted, highest rank first; rank 0 is never omitted.
type column struct {
	title string
	right bool // aligned to the right
	rank  int
	least int // minimum width, so that the table does not change as numbers grow
}

const shortestName = 8

// table lays out a header and rows in the given width. The first column is truncated to the remaining width; with fill,
// it is also extended to that width.
func table(columns []column, rows [][]string, width int, fill bool) (header string, lines []string) {
	widths, shown := make([]int, len(columns)), make([]bool, len(columns))
	for i, c := range columns {
		widths[i], shown[i] = max(utf8.RuneCountInString(c.title), c.least), true
		for _, r := range rows {
			widths[i] = max(widths[i], utf8.RuneCountInString(r[i]))
		}
	}
	rest := func() int {
		n := 0
		for i := 1; i < len(columns); i++ {
			if shown[i] {
				n += 2 + widths[i]
			}
		}
		return n
	}
	for rest()+min(widths[0], max(shortestName, columns[0].least)) > width {
		last := 0
		for i, c := range columns {
			if shown[i] && c.rank > columns[last].rank {
				last = i
			}
		}
		if last == 0 {
			break
		}
		shown[last] = false
	}
	if room := width - rest(); fill || widths[0] > room {
		widths[0] = max(room, 1)
	}
	layout := func(cells func(int) string) string {
		var b strings.Builder
		for i, c := range columns {
			if !shown[i] {
				continue
			}
			text := fit(cells(i), widths[i])
			blanks := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(text))
			if i > 0 {
				b.WriteString("  ")
			}
			if c.right {
				b.WriteString(blanks + text)
			} else {
				b.WriteString(text + blanks)
			}
		}
		return fit(b.String(), width)
	}
	header = layout(func(i int) string { return columns[i].title })
	for _, r := range rows {
		lines = append(lines, layout(func(i int) string { return r[i] }))
	}
	return header, lines
}
