// SPDX-License-Identifier: Apache-2.0

package top

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"

	"github.com/lockstep-mq/lockstep/cmd/internal/output"
	"github.com/lockstep-mq/lockstep/cmd/internal/pairstatus"
	"github.com/lockstep-mq/lockstep/store/units"
)

const (
	minWidth  = 40
	minHeight = 10
)

func (m model) View() tea.View {
	v := tea.NewView(m.frame())
	v.AltScreen, v.WindowTitle = true, "lockstep top"
	return v
}

func (m *model) frame() string {
	if m.width < minWidth || m.height < minHeight {
		lines := output.Wrap(fmt.Sprintf("terminal too small: %d×%d instead of %d×%d; q: quit", m.width, m.height,
			minWidth, minHeight), max(m.width, 1))
		return strings.Join(lines[:min(len(lines), max(m.height, 1))], "\n")
	}
	var lines []string
	switch m.screen {
	case ofQueue:
		lines = m.scrolled(append([]string{m.titleLine()}, m.queueLines()...))
	case ofAlarms:
		lines = m.scrolled(append([]string{m.titleLine()}, m.alarmLines()...))
	case ofKeys:
		lines = m.scrolled(m.helpLines())
	default:
		lines = append(m.head(), m.listLines()...)
	}
	lines = lines[:min(len(lines), m.height-m.footerHeight())]
	for len(lines) < m.height-m.footerHeight() {
		lines = append(lines, "")
	}
	return strings.Join(append(lines, m.footer()...), "\n")
}

func (m *model) scrolled(lines []string) []string {
	room := m.height - m.footerHeight()
	return lines[min(m.scroll, max(len(lines)-room, 0)):]
}

func (m *model) head() []string {
	lines := append([]string{m.titleLine()}, m.nodeLines()...)
	lines = append(lines, m.conditionLines()...)
	return append(lines, m.rateLines()...)
}

func (m *model) titleLine() string {
	left := "lockstep top"
	paused := ""
	if p := m.status.status.Pair; p != nil {
		left += fmt.Sprintf("  pair %.8s  term %d  in sync: %s", p.PairID, p.Term,
			cmp.Or(strings.Join(p.InSync, ", "), "none"))
		if p.CoordinatorReachable {
			left += "  " + p.Coordinator + " reachable"
		} else {
			left += "  " + p.Coordinator + " NOT reachable"
		}
		if p.Paused != "" {
			paused = "  PAUSED"
		}
	}
	right := ""
	if m.reported {
		right = "  " + m.at()
	}
	left = fit(left, m.width-len(right)-len(paused))
	blanks := strings.Repeat(" ", max(m.width-columnsOf(left)-len(right)-len(paused), 0))
	return m.paint.bold(left) + m.paint.warning(paused) + blanks + m.paint.dim(right)
}

func columnsOf(text string) int { return len([]rune(text)) }

func (m *model) nodeLines() []string {
	if !m.reported {
		return []string{"connecting to the nodes …"}
	}
	s := &m.status.status
	columns := []column{
		{title: "NODE", least: 6},
		{title: "ROLE", least: 12},
		{title: "SYNC", rank: 1},
		{title: "LAG", least: 10, rank: 2},
		{title: "DISK FREE", rank: 3, least: 13},
		{title: "MEMORY", rank: 4, least: 17},
		{title: "TERM", right: true, rank: 6},
		{title: "VERSION", rank: 8},
		{title: "ADDRESS", rank: 5},
		{title: "NOTES", rank: 7},
	}
	var rows [][]string
	for i := range s.Nodes {
		n := &s.Nodes[i]
		if n.Error != "" {
			rows = append(rows, []string{
				cmp.Or(m.names[n.Address], n.Address), n.Unanswered(), "", "", "", "", "", "", n.Address, n.Error,
			})
			continue
		}
		note := ""
		if n.Maintenance != nil {
			note = n.Maintenance.String()
		}
		rows = append(rows, []string{
			n.Name, n.Role, output.YesNo(n.InSync), lagOf(n), diskOf(n), memoryOf(n), fmt.Sprint(n.Term), n.Version,
			n.Address, cmp.Or(note, n.Reason),
		})
	}
	header, lines := table(columns, rows, m.width, false)
	for i := range lines {
		switch n := &s.Nodes[i]; {
		case n.Error != "":
			lines[i] = m.paint.critical(lines[i])
		case pairstatus.BaseRole(n.Role) == pairstatus.Active:
			lines[i] = m.paint.good(lines[i])
		}
	}
	return append([]string{m.paint.dim(header)}, lines...)
}

func lagOf(n *pairstatus.Node) string {
	switch {
	case n.Standby == "":
		return ""
	case n.Activity == nil: // an older release that does not report bytes
		return output.Plural(n.StandbyLag, "record")
	}
	text := output.Bytes(n.StandbyLagBytes)
	if n.StandbyLagSeconds >= 1 {
		text += " " + units.Age(time.Duration(n.StandbyLagSeconds*float64(time.Second)))
	}
	return text
}

func diskOf(n *pairstatus.Node) string {
	text := output.Bytes(n.DiskFree)
	if n.DiskSize > 0 {
		text += fmt.Sprintf(" %d%%", n.DiskFree*100/n.DiskSize)
	}
	return text
}

func memoryOf(n *pairstatus.Node) string {
	if n.Activity == nil {
		return ""
	}
	return output.Bytes(n.Activity.MemoryBytes) + " of " + output.Bytes(n.Activity.MemoryBudgetBytes)
}

// conditionLines returns the conditions and actions, limited to a third of the screen.
func (m *model) conditionLines() []string {
	all := m.status.status.Conditions
	room := max(m.height/3-2, 2)
	var lines []string
	for i := range all {
		c := &all[i]
		text := conditionTitle(c)
		if c.Details != "" {
			text += ": " + c.Details
		}
		next := []string{m.paint.bySeverity(c.Severity, fit(text, m.width))}
		if c.Do != "" {
			next = append(next, fit("  do: "+c.Do, m.width))
		}
		if len(lines)+len(next) > room {
			return append(lines, m.paint.warning(fit(fmt.Sprintf("+ %d more: press a", len(all)-i), m.width)))
		}
		lines = append(lines, next...)
	}
	return lines
}

func conditionTitle(c *pairstatus.Condition) string {
	text := strings.ToUpper(c.Severity) + " " + c.Condition
	if c.Node != "" {
		text += " on " + c.Node
	}
	return text
}

func (m *model) alarmLines() []string {
	lines := []string{""}
	all := m.status.status.Conditions
	if len(all) == 0 {
		lines = append(lines, m.paint.good("no alarms"))
	}
	for i := range all {
		c := &all[i]
		lines = append(lines, m.paint.bySeverity(c.Severity, fit(conditionTitle(c)+" since "+
			output.LocalTime(c.Since), m.width)))
		for _, part := range []struct{ name, text string }{{"", c.Details}, {"means: ", c.Meaning}, {"do: ", c.Do}} {
			if part.text == "" {
				continue
			}
			for _, line := range output.Wrap(part.name+part.text, m.width-2) {
				lines = append(lines, "  "+line)
			}
		}
		lines = append(lines, "")
	}
	if text := m.status.status.PlanText; text != "" {
		lines = append(lines, output.Wrap(text, m.width)...)
	}
	return lines
}

func (m *model) rateLines() []string {
	if !m.reported {
		return nil
	}
	active := activeOf(&m.status.status)
	if active == nil {
		return []string{m.paint.critical(fit("no node is active: no messages are published or delivered", m.width))}
	}
	parts := []string{"published, delivered and acknowledged per second: not available yet"}
	if r := m.status.rates; r != nil {
		parts = []string{
			"published " + units.Rate(r.Published) + "/s", "delivered " + units.Rate(r.Delivered) + "/s",
			"acknowledged " + units.Rate(r.Acknowledged) + "/s",
		}
		if r.CommitP99MS > 0 {
			parts = append(parts, fmt.Sprintf("commit p50 %s p99 %s", milliseconds(r.CommitP50MS),
				milliseconds(r.CommitP99MS)))
		}
	}
	parts = append(parts,
		fmt.Sprintf("%s, %s", output.Plural(active.Messages, "message"), output.Bytes(active.MessageBytes)))
	if a := active.Activity; a != nil {
		parts = append(parts, output.Plural(a.Consumers, "consumer"), output.Plural(a.Connections, "connection"))
	}
	lines := []string{parts[0]}
	for _, part := range parts[1:] {
		if last := &lines[len(lines)-1]; columnsOf(*last)+2+columnsOf(part) <= m.width {
			*last += "  " + part
		} else {
			lines = append(lines, part)
		}
	}
	for i := range lines {
		lines[i] = fit(lines[i], m.width)
	}
	return lines
}

func milliseconds(ms float64) string {
	switch {
	case ms < 1:
		return fmt.Sprintf("%.0f µs", ms*1000)
	case ms < 10:
		return fmt.Sprintf("%.1f ms", ms)
	case ms < 10_000:
		return fmt.Sprintf("%.0f ms", ms)
	}
	return fmt.Sprintf("%.0f s", ms/1000)
}

func (m *model) footerHeight() int { return len(m.footer()) }

func (m *model) footer() []string {
	var lines []string
	switch {
	case m.asking != nil:
		for _, line := range output.Wrap(m.asking.text, m.width) {
			lines = append(lines, m.paint.warning(line))
		}
	case m.filtering:
		lines = append(lines, m.paint.bold(fit("filter: "+m.query.contains+"▏ (enter: keep, esc: clear)", m.width)))
	case m.busy != "":
		lines = append(lines, m.paint.warning(fit(m.busy, m.width)))
	case m.shownText != "":
		shownText := output.Wrap(m.shownText, m.width)
		for _, line := range shownText[:min(len(shownText), 3)] {
			if m.failed {
				line = m.paint.critical(line)
			}
			lines = append(lines, line)
		}
	}
	keys := "? keys  / filter  s sort  enter queue  a alarms  S switchover  P pause  q quit"
	if m.screen != ofPair {
		keys = "esc back  ↑↓ scroll  ? keys  a alarms  S switchover  P pause  q quit"
	}
	return append(lines, m.paint.dim(fit(keys, m.width)))
}
