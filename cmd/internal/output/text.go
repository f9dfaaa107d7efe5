// SPDX-License-Identifier: Apache-2.0

package output

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/lockstep-mq/lockstep/client"
)

const maxBodyText = 60

// Body returns the first maxBodyText characters of a body, escaped and on one line; "(binary)" if they are not UTF-8.
func Body(body []byte) string {
	head := body[:min(len(body), 4*maxBodyText)]
	for len(head) < len(body) && len(head) > 0 && !utf8.RuneStart(body[len(head)]) {
		head = head[:len(head)-1] // do not split a character
	}
	if !utf8.Valid(head) {
		return "(binary)"
	}
	runes := []rune(string(head))
	cut := len(runes) > maxBodyText || len(head) < len(body)
	if len(runes) > maxBodyText {
		runes = runes[:maxBodyText]
	}
	q := strconv.Quote(string(runes))
	s := q[1 : len(q)-1]
	s = strings.ReplaceAll(s, `\"`, `"`)
	if cut {
		s += "…"
	}
	return s
}

// StoredProperties returns the text of Properties, preceded by the origin of a dead letter.
func StoredProperties(s *client.Stored) string {
	d := s.DeadLetter
	if d == nil {
		return Properties(&s.Message)
	}
	text := fmt.Sprintf("dead-letter: %s from %s/%s #%d after %s", d.Reason, d.Queue, d.Subscription, d.Sequence,
		deliveries(d.Deliveries))
	return strings.TrimRight(text+" "+Properties(&s.Message), " ")
}

func deliveries(n uint32) string {
	if n == 1 {
		return "1 delivery"
	}
	return Count(n) + " deliveries"
}

func priority(p *uint8) string {
	if p == nil {
		return ""
	}
	return fmt.Sprint(*p)
}

func timeText(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format(time.RFC3339Nano)
}

// Properties formats a message without its body: the standard fields, and then the properties in the order of their
// keys.
func Properties(m *client.Message) string {
	var parts []string
	for _, field := range [...]struct{ name, text string }{
		{"message-id", m.MessageID},
		{"correlation-id", m.CorrelationID},
		{"reply-to", m.ReplyTo},
		{"content-type", m.ContentType},
		{"subject", m.Subject},
		{"group", m.Group},
		{"priority", priority(m.Priority)},
		{"expires-at", timeText(m.ExpiresAt)},
		{"deliver-at", timeText(m.DeliverAt)},
	} {
		if field.text != "" {
			parts = append(parts, field.name+": "+Body([]byte(field.text)))
		}
	}
	all := make(map[string]string, len(m.Properties)+len(m.Values))
	for k, v := range m.Properties {
		all[k] = Body([]byte(v))
	}
	for k, v := range m.Values {
		if b, is := v.([]byte); is {
			all[k] = Body(b)
		} else {
			all[k] = fmt.Sprint(v)
		}
	}
	for _, k := range slices.Sorted(maps.Keys(all)) {
		parts = append(parts, k+"="+all[k])
	}
	return strings.Join(parts, " ")
}

// Wrap breaks a text into lines of at most the given number of columns, between words if possible.
func Wrap(text string, columns int) []string {
	var lines []string
	line := ""
	for word := range strings.FieldsSeq(text) {
		for utf8.RuneCountInString(word) > columns {
			if line != "" {
				lines = append(lines, line)
				line = ""
			}
			runes := []rune(word)
			lines = append(lines, string(runes[:columns]))
			word = string(runes[columns:])
		}
		switch {
		case line == "":
			line = word
		case utf8.RuneCountInString(line)+1+utf8.RuneCountInString(word) <= columns:
			line += " " + word
		default:
			lines = append(lines, line)
			line = word
		}
	}
	if line != "" {
		lines = append(lines, line)
	}
	return lines
}
