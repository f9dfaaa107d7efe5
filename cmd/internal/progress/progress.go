// SPDX-License-Identifier: Apache-2.0

// Package progress displays the progress of long operations: bars with rate and remaining time on a terminal, periodic
// lines elsewhere.
package progress

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"time"
)

const drawEvery = 100 * time.Millisecond

// Display shows bars, and lines of text above them. It is safe for concurrent use.
type Display struct {
	w        io.Writer
	terminal bool

	mu     sync.Mutex // guards all fields below, and writing
	bars   []*Bar
	drawn  int // number of bar lines currently on the terminal
	lastAt time.Time
}

// New creates a display. terminal reports whether w supports control sequences.
func New(w io.Writer, terminal bool) *Display { return &Display{w: w, terminal: terminal} }

// Bar adds a bar for an operation.
func (d *Display) Bar(label string) *Bar {
	b := NewBar(label)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.bars = append(d.bars, b)
	return b
}

// Set displays the progress of an operation.
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

// End displays the result of an operation.
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

// Line prints a line of text above the bars.
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

// Close ends the display. Bars that have started stay on the terminal.
func (d *Display) Close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.terminal && len(d.bars) > 0 {
		d.draw("")
	}
	d.bars, d.drawn = nil, 0
}

// Clear removes the bars from a terminal, before output that contains more detail.
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

// write writes to the terminal and ignores errors: the operation continues without a terminal.
func (d *Display) write(s string) { _, _ = io.WriteString(d.w, s) }

// Erase returns the control sequence that erases the given number of lines above the cursor. The cursor must be at the
// start of a line.
func Erase(lines int) string {
	if lines == 0 {
		return ""
	}
	return fmt.Sprintf("\x1b[%dA\r\x1b[J", lines)
}
