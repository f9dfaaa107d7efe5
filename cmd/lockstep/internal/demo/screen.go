package demo

import (
	"fmt"
	"io"
	"sync"
	"time"
)

// Screen shows events, each on a line with the time since the start, and below them, on a terminal, a line that changes.
type Screen struct {
	w        io.Writer
	terminal bool
	start    time.Time

	mu      sync.Mutex // guards all below, and writing
	line    func() string
	stop    chan struct{} // ends the goroutine that redraws; nil when there is none
	stopped chan struct{}
}

// NewScreen makes a screen. terminal tells whether w understands control sequences.
func NewScreen(w io.Writer, terminal bool) *Screen {
	return &Screen{w: w, terminal: terminal, start: time.Now()}
}

const clearLine = "\r\x1b[K"

// Event shows a line.
func (s *Screen) Event(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	text := fmt.Sprintf("%6.1fs  %s\n", time.Since(s.start).Seconds(), fmt.Sprintf(format, args...))
	if s.line != nil {
		text = clearLine + text + "         " + s.line()
	}
	_, _ = io.WriteString(s.w, text) // a screen that is gone is no reason to stop
}

// Progress shows what line returns, again and again, until it is called with nil.
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
		_, _ = io.WriteString(s.w, clearLine)
	}
	s.line = line
	if line == nil {
		return
	}
	s.stop, s.stopped = make(chan struct{}), make(chan struct{})
	go s.redraw(s.stop, s.stopped)
}

// redraw shows the line until stop is closed.
func (s *Screen) redraw(stop, stopped chan struct{}) {
	defer close(stopped)
	ticker := time.NewTicker(100 * time.Millisecond)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			s.mu.Lock()
			if s.line != nil {
				_, _ = io.WriteString(s.w, clearLine+"         "+s.line())
			}
			s.mu.Unlock()
		case <-stop:
			return
		}
	}
}
