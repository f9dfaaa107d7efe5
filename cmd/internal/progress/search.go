// SPDX-License-Identifier: Apache-2.0

package progress

import (
	"fmt"
	"io"
	"time"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/cmd/internal/output"
)

const searchQuiet = time.Second // shorter searches have no display

// Search displays the progress of a search for messages on w.
type Search struct {
	w       io.Writer
	label   string
	hidden  bool
	display *Display
	bar     *Bar
	began   time.Time
	last    client.SearchProgress
}

// NewSearch starts the display of a search. If hidden is set, the progress is not displayed, because the results
// are printed continuously.
func NewSearch(w io.Writer, label string, hidden bool) *Search {
	return &Search{
		w: w, label: label, hidden: hidden, display: New(w, output.IsTerminal(w)), began: time.Now(),
	}
}

// Set displays the progress of the search.
func (s *Search) Set(p client.SearchProgress) {
	s.last = p
	if s.hidden || time.Since(s.began) < searchQuiet || p.From >= p.Before {
		return
	}
	if s.bar == nil {
		s.bar = s.display.Bar(s.label)
	}
	s.display.Set(s.bar, Step{
		Phase: "searching", Done: p.Scanned, Total: p.Scanned + p.Before - p.From, Messages: true,
	})
}

// Clear removes the progress from a terminal, before other output.
func (s *Search) Clear() {
	if s.bar != nil {
		s.display.Clear()
		s.bar = nil
	}
}

// End ends the display, and prints the number of messages for which the filter was not evaluated.
func (s *Search) End() {
	s.Clear()
	if n := s.last.Unevaluated; n > 0 {
		fmt.Fprintf(s.w, "lockstep: filter not evaluated for %s: its cost or the size of a JSON body exceeds a limit\n",
			output.Plural(n, "message"))
	}
}
