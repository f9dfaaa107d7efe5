// SPDX-License-Identifier: Apache-2.0

package out

import (
	"io"
	"os"
	"time"

	"golang.org/x/term"
)

// LocalTime writes a time for people: in the local time zone, "-" for none.
func LocalTime(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return t.Local().Format(time.DateTime)
}

// IsTerminal tells whether w is a terminal.
func IsTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// Milliseconds with three digits after the point, for programs.
func Milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
