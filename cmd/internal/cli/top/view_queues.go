// SPDX-License-Identifier: Apache-2.0

package top

import (
	"fmt"
	"strings"
	"time"

	"github.com/lockstep-mq/lockstep/cmd/internal/output"
	"github.com/lockstep-mq/lockstep/store/units"
)

func (m *model) rows() int {
	return max(m.height-m.footerHeight()-len(m.head())-2, 1) // below a title and a header
}

func (m *model) listLines() []string {
	if m.listErr != nil && !m.listed {
		return []string{"", m.paint.critical(fit(m.listErr.Error(), m.width))}
	}
	if !m.listed {
		return []string{"", "loading queues …"}
	}
	lines := []string{m.listTitle()}
	start := m.first - m.page.query.offset
	var shown []Queue
	if start >= 0 && start < len(m.page.queues) {
		shown = m.page.queues[start:min(start+m.rows(), len(m.page.queues))]
	}
	header, rows := queueTable(shown, m.width, m.page.query.order)
	lines = append(lines, m.paint.dim(header))
	for i, row := range rows {
		if m.first+i == m.cursor {
			row = m.paint.chosen(row)
		}
		lines = append(lines, row)
	}
	return lines
}

// listTitle returns the title of the queue list. If the active does not respond, the title contains the error.
func (m *model) listTitle() string {
	q := m.page.query
	text := fmt.Sprintf("%s by %s", output.Plural(m.page.total, "queue"), q.order)
	if q.reversed {
		text += ", reversed"
	}
	if q.contains != "" {
		text += fmt.Sprintf(", with %q", q.contains)
	}
	if m.page.total > 0 {
		text += fmt.Sprintf(" (%s of %s)", output.Count(min(m.cursor+1, m.page.total)), output.Count(m.page.total))
	}
	text = fit(text, m.width)
	if m.listErr != nil {
		return m.paint.bold(text) + m.paint.critical(fit("  outdated: "+m.listErr.Error(), m.width-columnsOf(text)))
	}
	return m.paint.bold(text)
}

func queueTable(queues []Queue, width int, by order) (header string, lines []string) {
	columns := []column{
		{title: "QUEUE", least: 24},
		{title: "MESSAGES", right: true, least: 12},
		{title: "IN/S", right: true, rank: 1, least: 8},
		{title: "OUT/S", right: true, rank: 3, least: 8},
		{title: "ACKED/S", right: true, rank: 2, least: 8},
		{title: "OLDEST", right: true, rank: 4, least: 7},
		{title: "CONSUMERS", right: true, rank: 5},
		{title: "BYTES", right: true, rank: 6, least: 10},
	}
	sorted := map[order]int{
		byMessages: 1, byPublished: 2, byDelivered: 3, byAcknowledged: 4, byAge: 5, byConsumers: 6, byName: 0,
	}
	columns[sorted[by]].title += "*"
	columns[sorted[by]].rank = 0
	rows := make([][]string, 0, len(queues))
	for i := range queues {
		q := &queues[i]
		published, delivered, acknowledged, oldest := activityOf(q)
		rows = append(rows, []string{
			q.Name, output.Count(q.Messages), published, delivered, acknowledged, oldest, output.Count(q.Consumers),
			output.Bytes(q.Bytes),
		})
	}
	return table(columns, rows, width, true)
}

func activityOf(q *Queue) (published, delivered, acknowledged, oldest string) {
	a := q.Activity
	if a == nil {
		return "-", "-", "-", "-"
	}
	known := func(v *float64, write func(float64) string) string {
		if v == nil {
			return "-"
		}
		return write(*v)
	}
	return known(a.Published, units.Rate), known(a.Delivered, units.Rate), known(a.Acknowledged, units.Rate),
		known(a.OldestSeconds, func(s float64) string { return units.Age(time.Duration(s * float64(time.Second))) })
}

func (m *model) queueLines() []string {
	q := m.shown()
	switch {
	case q == nil && m.listErr != nil:
		return []string{"", m.paint.critical(fit("queue "+m.queue+": "+m.listErr.Error(), m.width))}
	case q == nil && (!m.listed || m.page.query != m.wanted()):
		return []string{"", "loading queue " + m.queue + " …"}
	case q == nil:
		return []string{"", m.paint.warning(fit("queue "+m.queue+" does not exist", m.width))}
	}
	published, delivered, acknowledged, oldest := activityOf(q)
	facts := append([]fact{
		{"messages", fmt.Sprintf("%s, %s", output.Count(q.Messages), output.Bytes(q.Bytes))},
		{"per second", fmt.Sprintf("%s published, %s delivered, %s acknowledged", published, delivered, acknowledged)},
		{"oldest", oldest},
	}, q.facts...)
	lines := []string{"", m.paint.bold(fit("queue "+q.Name, m.width))}
	for _, f := range facts {
		lines = append(lines, fit(fmt.Sprintf("%-12s  %s", f.name, f.value), m.width))
	}
	rows := make([][]string, 0, len(q.Subscriptions))
	for i := range q.Subscriptions {
		s := &q.Subscriptions[i]
		rows = append(rows, []string{
			s.Name, output.Count(s.Backlog), output.Count(s.InFlight), output.Count(s.Consumers), s.Filter,
		})
	}
	header, table := table([]column{
		{title: "SUBSCRIPTION"},
		{title: "BACKLOG", right: true, least: 12},
		{title: "IN FLIGHT", right: true, rank: 1},
		{title: "CONSUMERS", right: true, rank: 2},
		{title: "FILTER", rank: 3},
	}, rows, m.width, false)
	lines = append(append(lines, "", m.paint.dim(header)), table...)
	if len(table) == 0 {
		lines = append(lines, "no subscriptions: published messages are not delivered")
	}
	return lines
}

func (m *model) helpLines() []string {
	lines := []string{m.paint.bold("lockstep top: keys"), ""}
	for _, k := range [][2]string{
		{"↑ ↓ pgup pgdn", "select a queue, or scroll"},
		{"home end", "first, last queue"},
		{"enter", "details of the selected queue"},
		{"/", "filter: type part of the name; enter keeps it, esc clears it"},
		{"s or >, <", "sort by the next, previous column; * marks it"},
		{"r", "reverse the order"},
		{"a", "alarms: all conditions with explanations and actions"},
		{"S", "switch over: the standby becomes active; asks for confirmation"},
		{"P", "pause or resume the pair; asks for confirmation"},
		{"esc", "back"},
		{"?", "show these keys"},
		{"q ctrl+c", "quit"},
	} {
		lines = append(lines, fit(fmt.Sprintf("%s%s  %s", k[0], strings.Repeat(" ", 14-columnsOf(k[0])), k[1]), m.width))
	}
	if !m.operate {
		lines = append(lines, "", m.paint.warning(fit("S and P: not permitted (lockstep access whoami)", m.width)))
	}
	return lines
}

func printed(p *Screen) string {
	m := newModel(actions{})
	m.paint.plain = true
	m.width, m.height = 120, 1<<20
	m.status, m.reported = statusMsg{at: p.At, status: p.Status, rates: p.Rates}, true
	lines := m.head()
	if p.QueuesError != "" {
		lines = append(lines, p.QueuesError)
	} else {
		header, rows := queueTable(p.Queues, m.width, byMessages)
		lines = append(append(lines, output.Plural(p.QueuesTotal, "queue")+" by messages", header), rows...)
	}
	for i := range lines {
		lines[i] = strings.TrimRight(lines[i], " ")
	}
	return strings.Join(lines, "\n") + "\n"
}
