// SPDX-License-Identifier: Apache-2.0

package progress

import (
	"fmt"
	"io"
	"time"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/cmd/internal/output"
)

const searchQuiet = time.Second // searches that take less time have no display

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

// NewSearch starts the display of a search. hidden suppresses the progress, since results are printed continuously.
func NewSearch(w io.Writer, label string, hidden bool) *Search {
	return &Search{
		w: w, label: label, hidden: hidden, display: New(w, output.IsTerminal(w)), began: time.Now(),
	}
}

// Set displays the progress.
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

// End ends the display, and reports messages that were not evaluated.
func (s *Search) End() {
	s.Clear()
	if n := s.last.Unevaluated; n > 0 {
		fmt.Fprintf(s.w, "lockstep: %s did not match because of a limit: cost of the filter, or size of a JSON body\n",
			output.Plural(n, "message"))
	}
}
