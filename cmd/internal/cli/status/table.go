// SPDX-License-Identifier: Apache-2.0

package status

import (
	"cmp"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	"github.com/lockstep-mq/lockstep/cmd/internal/output"
	"github.com/lockstep-mq/lockstep/cmd/internal/pairstatus"
)

// The node table fits a terminal of statusColumns. The notes get the remaining width.
const (
	statusColumns = 120
	minNote       = 12
)

// printNodes prints one row per node. A note that does not fit is truncated, and printed in full below the table unless
// a condition contains it.
func printNodes(env *cli.Env, s pairstatus.Status) error {
	header := []string{
		"Node", "Address", "Role", "In sync", "Term", "Durable", "Applied", ">Queues", ">Messages",
		"Notes",
	}
	rows, notes := make([][]any, 0, len(s.Nodes)), make([]string, 0, len(s.Nodes))
	for _, n := range s.Nodes {
		if n.Error != "" {
			rows, notes = append(rows, []any{"?", n.Address, n.Unanswered(), "", "", "", "", "", ""}),
				append(notes, n.Error)
			continue
		}
		rows, notes = append(rows, []any{
			n.Name, n.Address, n.ShownRole(), output.YesNo(n.InSync), n.Term, n.LogDurable, n.Applied,
			output.Count(n.Queues), output.Count(n.Messages),
		}), append(notes, notesOf(&n))
	}
	room := noteRoom(header, rows)
	for i := range rows {
		rows[i] = append(rows[i], truncateNote(notes[i], room))
	}
	if err := env.Print.Table(header, rows); err != nil {
		return err
	}
	for _, n := range s.Nodes {
		if len(n.Certificates) == 0 {
			continue
		}
		if err := env.Print.Sentence("%s: %s", cmp.Or(n.Name, n.Address), certificatesOf(&n)); err != nil {
			return err
		}
	}
	for i, n := range s.Nodes {
		if truncateNote(notes[i], room) == notes[i] || conditionLines(&s, notes[i]) {
			continue
		}
		if err := env.Print.Sentence("%s: %s", cmp.Or(n.Name, n.Address), notes[i]); err != nil {
			return err
		}
	}
	return nil
}

// certificatesOf returns, for each use, the expiry date of the certificate that expires first.
func certificatesOf(n *pairstatus.Node) string {
	var uses []string
	first := make(map[string]*pairstatus.Certificate)
	for i := range n.Certificates {
		c := &n.Certificates[i]
		if first[c.Use] == nil {
			uses = append(uses, c.Use)
		} else if !c.Ends.Before(first[c.Use].Ends) {
			continue
		}
		first[c.Use] = c
	}
	texts := make([]string, 0, len(uses))
	for _, use := range uses {
		texts = append(texts, use+" "+first[use].Ends.Local().Format(time.DateOnly))
	}
	return "certificates expire: " + strings.Join(texts, ", ")
}

func notesOf(n *pairstatus.Node) string {
	var all []string
	if n.Standby != "" {
		all = append(all, fmt.Sprintf("standby %s, %s behind", strings.ReplaceAll(n.Standby, "-", " "),
			output.Plural(n.StandbyLag, "record")))
	}
	if n.Maintenance != nil {
		all = append(all, n.Maintenance.String())
	}
	if n.Reason != "" {
		all = append(all, n.Reason) // last: a long reason is truncated
	}
	return strings.Join(all, "; ")
}

func conditionLines(s *pairstatus.Status, note string) bool {
	for i := range s.Conditions {
		if strings.Contains(s.Conditions[i].Details, note) {
			return true
		}
	}
	return false
}

func noteRoom(header []string, rows [][]any) int {
	room := statusColumns - 2 // padding of the last column
	for i, h := range header[:len(header)-1] {
		width := utf8.RuneCountInString(strings.TrimPrefix(h, ">"))
		for _, row := range rows {
			width = max(width, utf8.RuneCountInString(fmt.Sprint(row[i])))
		}
		room -= width + 2
	}
	return max(room, minNote)
}

// truncateNote truncates a note to room characters, between two words if possible.
func truncateNote(note string, room int) string {
	if utf8.RuneCountInString(note) <= room {
		return note
	}
	short := string([]rune(note)[:room-1])
	if i := strings.LastIndexByte(short, ' '); i > room/2 {
		short = short[:i]
	}
	return strings.TrimRight(short, " ,;:.") + "…"
}
