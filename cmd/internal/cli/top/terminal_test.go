// SPDX-License-Identifier: Apache-2.0

package top_test

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"unicode/utf8"
)

// terminal emulates the terminal features that the program uses. Unknown sequences are recorded in unknown.
type terminal struct {
	mu            sync.Mutex
	width, height int
	cells         [][]rune
	row, col      int
	top, bottom   int // rows of the scroll region
	last          rune
	coloured      bool // a colour was set
	unknown       []string
	rest          []byte // incomplete sequence
}

func newTerminal(width, height int) *terminal {
	t := &terminal{}
	t.resize(width, height)
	return t
}

// resize changes the size and clears the screen.
func (t *terminal) resize(width, height int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.width, t.height, t.row, t.col = width, height, 0, 0
	t.top, t.bottom = 0, height-1
	t.cells = make([][]rune, height)
	for i := range t.cells {
		t.cells[i] = []rune(strings.Repeat(" ", width))
	}
}

// text returns the text on the screen.
func (t *terminal) text() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	var b strings.Builder
	for _, line := range t.cells {
		b.WriteString(strings.TrimRight(string(line), " ") + "\n")
	}
	return b.String()
}

// Write implements io.Writer.
func (t *terminal) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	data := slices.Concat(t.rest, p)
	for len(data) > 0 {
		n := t.take(data)
		if n == 0 {
			break
		}
		data = data[n:]
	}
	t.rest = append([]byte(nil), data...)
	return len(p), nil
}

// take interprets the first character or sequence and returns its length; 0 if it is incomplete.
func (t *terminal) take(data []byte) int {
	switch c := data[0]; {
	case c == 0x1b:
		return t.escape(data)
	case c == '\r':
		t.col = 0
	case c == '\n':
		t.down()
	case c == '\b':
		t.col = max(t.col-1, 0)
	case c == '\t':
		t.col = min((t.col/8+1)*8, t.width-1)
	case c == 7 || c == 0:
	case c < ' ':
		t.unknown = append(t.unknown, fmt.Sprintf("%q", c))
	default:
		if !utf8.FullRune(data) {
			return 0
		}
		r, n := utf8.DecodeRune(data)
		t.put(r)
		return n
	}
	return 1
}

func (t *terminal) put(r rune) {
	if t.col >= t.width {
		t.col = 0
		t.down()
	}
	t.cells[t.row][t.col] = r
	t.col++
	t.last = r
}

func (t *terminal) down() {
	switch {
	case t.row == t.bottom:
		t.scroll(t.top, 1)
	case t.row < t.height-1:
		t.row++
	}
}

// scroll moves the lines from the given row to the end of the region up by n rows, or down if n is negative.
func (t *terminal) scroll(from, n int) {
	for ; n > 0; n-- {
		copy(t.cells[from:t.bottom], t.cells[from+1:t.bottom+1])
		t.cells[t.bottom] = []rune(strings.Repeat(" ", t.width))
	}
	for ; n < 0; n++ {
		copy(t.cells[from+1:t.bottom+1], t.cells[from:t.bottom])
		t.cells[from] = []rune(strings.Repeat(" ", t.width))
	}
}

func (t *terminal) escape(data []byte) int {
	if len(data) < 2 {
		return 0
	}
	switch data[1] {
	case '[':
		for i := 2; i < len(data); i++ {
			if data[i] >= '@' && data[i] <= '~' {
				t.control(string(data[2:i]), data[i])
				return i + 1
			}
		}
		return 0
	case ']', 'P', '_', '^': // until BEL or ST
		for i := 2; i < len(data); i++ {
			if data[i] == 7 {
				return i + 1
			}
			if data[i] == '\\' && data[i-1] == 0x1b {
				return i + 1
			}
		}
		return 0
	case 'M':
		if t.row == t.top {
			t.scroll(t.top, -1)
		} else {
			t.row = max(t.row-1, 0)
		}
	case '7', '8', '=', '>':
	case '(', ')':
		if len(data) < 3 {
			return 0
		}
		return 3
	default:
		t.unknown = append(t.unknown, fmt.Sprintf("ESC %q", data[1]))
	}
	return 2
}

func (t *terminal) control(args string, final byte) {
	if strings.ContainsAny(args, "?><=$ ") || strings.IndexByte("hlnctqupy", final) >= 0 {
		return // modes and queries do not change the screen
	}
	var n []int
	for s := range strings.SplitSeq(args, ";") {
		v, _ := strconv.Atoi(s)
		n = append(n, v)
	}
	count := max(n[0], 1)
	line := t.cells[t.row]
	switch final {
	case 'm':
		for _, v := range n {
			t.coloured = t.coloured || v >= 30 && v <= 38 || v >= 90 && v <= 97
		}
	case 'H', 'f':
		t.row, t.col = min(count, t.height)-1, 0
		if len(n) > 1 {
			t.col = min(max(n[1], 1), t.width) - 1
		}
	case 'A':
		t.row = max(t.row-count, 0)
	case 'B':
		t.row = min(t.row+count, t.height-1)
	case 'C':
		t.col = min(t.col+count, t.width-1)
	case 'D':
		t.col = max(t.col-count, 0)
	case 'G', '`':
		t.col = min(count, t.width) - 1
	case 'I': // next tab stop
		t.col = min((t.col/8+count)*8, t.width-1)
	case 'Z': // previous tab stop
		t.col = max(((t.col+7)/8-count)*8, 0)
	case 'd':
		t.row = min(count, t.height) - 1
	case 'r':
		t.top, t.bottom, t.row, t.col = count-1, t.height-1, 0, 0
		if len(n) > 1 && n[1] > 0 {
			t.bottom = min(n[1], t.height) - 1
		}
	case 'L':
		t.scroll(t.row, -count)
	case 'M':
		t.scroll(t.row, count)
	case 'S':
		t.scroll(t.top, count)
	case 'T':
		t.scroll(t.top, -count)
	case 'J':
		t.erase(n[0])
	case 'K':
		from, to := min(t.col, t.width), t.width
		if n[0] == 1 {
			from, to = 0, min(t.col+1, t.width)
		} else if n[0] == 2 {
			from = 0
		}
		blank(line[from:to])
	case 'X':
		blank(line[t.col:min(t.col+count, t.width)])
	case 'b':
		for range count {
			t.put(t.last)
		}
	case 'P':
		copy(line[t.col:], line[min(t.col+count, t.width):])
		blank(line[max(t.width-count, t.col):])
	case '@':
		copy(line[min(t.col+count, t.width):], line[t.col:])
		blank(line[t.col:min(t.col+count, t.width)])
	default:
		t.unknown = append(t.unknown, fmt.Sprintf("CSI %s %c", args, final))
	}
}

func (t *terminal) erase(label int) {
	switch label {
	case 0:
		blank(t.cells[t.row][min(t.col, t.width):])
		for _, line := range t.cells[t.row+1:] {
			blank(line)
		}
	case 1:
		for _, line := range t.cells[:t.row] {
			blank(line)
		}
	default:
		for _, line := range t.cells {
			blank(line)
		}
	}
}

func blank(cells []rune) {
	for i := range cells {
		cells[i] = ' '
	}
}
