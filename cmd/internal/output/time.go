// SPDX-License-Identifier: Apache-2.0

package output

import (
	"io"
	"os"
	"strings"
	"time"

	"golang.org/x/term"
)

// LocalTime formats a time in the local time zone. It returns "-" for the zero time.
func LocalTime(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return t.Local().Format(time.DateTime)
}

// IsTerminal reports whether w is a terminal.
func IsTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// Milliseconds returns d in milliseconds, with microsecond precision.
func Milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// Span formats a duration as flags accept it, such as 30s or 1h30m. It returns "" for 0.
func Span(d time.Duration) string {
	if d == 0 {
		return ""
	}
	text := d.String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}
