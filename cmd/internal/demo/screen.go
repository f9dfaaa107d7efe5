// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"time"
)

// Screen prints events, each on a line with the elapsed time. On a terminal, it redraws progress lines below them.
type Screen struct {
	w        io.Writer
	terminal bool
	start    time.Time

	mu      sync.Mutex // guards all fields below, and writing
	line    func() string
	drawn   int           // number of lines drawn last
	stop    chan struct{} // stops the redrawing goroutine; nil if it is not running
	stopped chan struct{}
}

// NewScreen creates a screen. terminal reports whether w supports control sequences.
func NewScreen(w io.Writer, terminal bool) *Screen {
	return &Screen{w: w, terminal: terminal, start: time.Now()}
}

const margin = "         "

// Terminal reports whether the screen is a terminal, and therefore displays progress lines.
func (s *Screen) Terminal() bool { return s.terminal }

// Time returns the time of t relative to the start, as printed with events.
func (s *Screen) Time(t time.Time) time.Duration { return t.Sub(s.start) }

// erase returns the control sequence that removes the progress lines. The cursor must be at the end of the last
// progress line. The caller holds mu.
func (s *Screen) erase() string {
	lines := s.drawn
	s.drawn = 0
	switch lines {
	case 0:
		return ""
	case 1:
		return "\r\x1b[J"
	}
	return fmt.Sprintf("\r\x1b[%dA\x1b[J", lines-1)
}

// draw returns the progress lines. The caller holds mu.
func (s *Screen) draw() string {
	text := s.line()
	s.drawn = strings.Count(text, "\n") + 1
	return margin + strings.ReplaceAll(text, "\n", "\n"+margin)
}

// Event prints a line with the elapsed time. It ignores write errors.
func (s *Screen) Event(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	text := fmt.Sprintf("%6.1fs  %s\n", time.Since(s.start).Seconds(), fmt.Sprintf(format, args...))
	if s.line != nil {
		text = s.erase() + text + s.draw()
	}
	_, _ = io.WriteString(s.w, text) // the demo continues without a terminal
}

// Progress redraws the lines returned by line periodically, until it is called with nil. Without a terminal, it does
// nothing.
func (s *Screen) Progress(line func() string) {
	if !s.terminal {
		return
	}
	s.mu.Lock()
	stop, stopped := s.stop, s.stopped
	s.stop = nil
	s.mu.Unlock()
	if stop != nil {
		close(stop)
		<-stopped
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.line != nil {
		_, _ = io.WriteString(s.w, s.erase())
	}
	s.line = line
	if line == nil {
		return
	}
	s.stop, s.stopped = make(chan struct{}), make(chan struct{})
	go s.redraw(s.stop, s.stopped)
}

func (s *Screen) redraw(stop, stopped chan struct{}) {
	defer close(stopped)
	ticker := time.NewTicker(100 * time.Millisecond)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			s.mu.Lock()
			if s.line != nil {
				_, _ = io.WriteString(s.w, s.erase()+s.draw())
			}
			s.mu.Unlock()
		case <-stop:
			return
		}
	}
}
