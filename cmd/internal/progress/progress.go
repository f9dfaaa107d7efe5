// SPDX-License-Identifier: Apache-2.0

// Package progress shows how far long operations are: bars with rate and remaining time on a terminal, a line now and
// then elsewhere.
//
// bar.go is one operation, progress.go puts any number of them below each other.
package progress

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"time"
)

// drawEvery is how often a terminal is drawn at most.
const drawEvery = 100 * time.Millisecond

// Display shows bars below each other, and lines of text above them. Safe for concurrent use.
type Display struct {
	w        io.Writer
	terminal bool

	mu     sync.Mutex // guards all below, and writing
	bars   []*Bar
	drawn  int // lines of bars on the terminal now
	lastAt time.Time
}

// New makes a display. terminal tells whether w understands control sequences.
func New(w io.Writer, terminal bool) *Display { return &Display{w: w, terminal: terminal} }

// Bar adds an operation.
func (d *Display) Bar(label string) *Bar {
	b := NewBar(label)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.bars = append(d.bars, b)
	return b
}

// Set shows how far one of the operations is.
func (d *Display) Set(b *Bar, s Step) {
	b.Set(s)
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.terminal {
		if line, due := b.Due(); due {
			d.write(line + "\n")
		}
		return
	}
	if now := time.Now(); now.Sub(d.lastAt) >= drawEvery {
		d.lastAt = now
		d.draw("")
	}
}

// End shows how one of the operations ended.
func (d *Display) End(b *Bar, format string, args ...any) {
	b.End(fmt.Sprintf(format, args...))
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.terminal {
		d.draw("")
	} else if line, due := b.Due(); due {
		d.write(line + "\n")
	}
}

// Line shows a line of text above the bars.
func (d *Display) Line(format string, args ...any) {
	d.mu.Lock()
	defer d.mu.Unlock()
	text := fmt.Sprintf(format, args...) + "\n"
	if d.terminal {
		d.draw(text)
	} else {
		d.write(text)
	}
}

// Close leaves what is shown where it is. Bars that did not begin are not shown.
func (d *Display) Close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.terminal && len(d.bars) > 0 {
		d.draw("")
	}
	d.bars, d.drawn = nil, 0
}

// Clear takes the bars away from a terminal: what comes next says more.
func (d *Display) Clear() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.bars = nil
	if d.terminal {
		d.draw("")
	}
}

// draw replaces the bars on the terminal, with text above them. The caller holds mu.
func (d *Display) draw(text string) {
	var s strings.Builder
	s.WriteString(Erase(d.drawn))
	s.WriteString(text)
	d.drawn = 0
	for _, b := range d.bars {
		if line := b.Line(); line != "" {
			s.WriteString(line + "\n")
			d.drawn++
		}
	}
	d.write(s.String())
}

// write is for a screen; one that is gone is no reason to stop.
func (d *Display) write(s string) { _, _ = io.WriteString(d.w, s) }

// Erase takes the last lines off a terminal; the cursor is at the beginning of the line below them.
func Erase(lines int) string {
	if lines == 0 {
		return ""
	}
	return fmt.Sprintf("\x1b[%dA\r\x1b[J", lines)
}
