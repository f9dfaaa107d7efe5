// SPDX-License-Identifier: Apache-2.0

package filter

import (
	"bytes"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"
)

const (
	// MaxJSONBytes is the maximum size of a JSON body that is parsed.
	MaxJSONBytes = 1 << 20
	// MaxJSONDepth is the maximum nesting depth of objects and arrays.
	MaxJSONDepth = 100
	// MaxJSONValues is the maximum number of values that are decoded for one message.
	MaxJSONValues = 100_000
)

// field is a node in the tree of JSON fields that an expression names. The root is the body.
type field struct {
	key      string
	children []*field
	slot     int  // index in document.spans
	whole    bool // the expression uses the whole value, not only the named fields in it
}

func (f *field) child(key []byte) *field {
	for _, c := range f.children {
		if string(key) == c.key {
			return c
		}
	}
	return nil
}

// span is the location of a value in a body. end is 0 if the body has no such value.
type span struct{ start, end int }

// document locates the named fields of a JSON text in one pass, without allocating memory. The grammar is that of
// RFC 8259. If a key is repeated, its last value is used.
type document struct {
	text     []byte
	spans    []span
	at       int
	depth    int
	limited  bool   // a limit was exceeded
	values   int    // number of values that may still be decoded
	unquoted []byte // scratch buffer for a key
}

// parse locates the fields of root in text. It reports whether text is a JSON text within the limits.
func (d *document) parse(text []byte, root *field) bool {
	d.text, d.at, d.depth, d.limited, d.values = text, 0, 0, false, MaxJSONValues
	clear(d.spans)
	d.space()
	if d.at == len(text) {
		return false
	}
	if len(text) > MaxJSONBytes {
		d.limited = text[d.at] == '{' || text[d.at] == '['
		return false
	}
	if !utf8.Valid(text) || !d.value(root) {
		return false
	}
	d.space()
	return d.at == len(text)
}

func (d *document) space() {
	for d.at < len(d.text) {
		switch d.text[d.at] {
		case ' ', '\t', '\n', '\r':
			d.at++
		default:
			return
		}
	}
}

func (d *document) accept(c byte) bool {
	if d.at < len(d.text) && d.text[d.at] == c {
		d.at++
		return true
	}
	return false
}

// value skips a value and records the spans of the fields of f in the value. f may be nil. value returns false if
// the value is invalid or nested too deeply.
func (d *document) value(f *field) bool {
	if d.at == len(d.text) {
		return false
	}
	start, ok := d.at, false
	switch c := d.text[d.at]; c {
	case '{':
		ok = d.nested(f, (*document).object)
	case '[':
		ok = d.nested(f, (*document).array)
	case '"':
		_, ok = d.quoted()
	case 't':
		ok = d.word("true")
	case 'f':
		ok = d.word("false")
	case 'n':
		ok = d.word("null")
	default:
		ok = d.number()
	}
	if ok && f != nil {
		d.spans[f.slot] = span{start, d.at}
	}
	return ok
}

func (d *document) nested(f *field, content func(*document, *field) bool) bool {
	if d.depth == MaxJSONDepth {
		d.limited = true
		return false
	}
	d.depth++
	d.at++
	ok := content(d, f)
	d.depth--
	return ok
}

func (d *document) object(f *field) bool {
	d.space()
	if d.accept('}') {
		return true
	}
	for {
		start := d.at
		escaped, ok := d.quoted()
		if !ok {
			return false
		}
		var child *field
		if f != nil && len(f.children) > 0 {
			key := d.text[start+1 : d.at-1]
			if escaped {
				d.unquoted = unquote(d.unquoted[:0], key)
				key = d.unquoted
			}
			if child = f.child(key); child != nil {
				d.forget(child)
			}
		}
		d.space()
		if !d.accept(':') {
			return false
		}
		d.space()
		if !d.value(child) {
			return false
		}
		d.space()
		if d.accept('}') {
			return true
		}
		if !d.accept(',') {
			return false
		}
		d.space()
	}
}

// forget clears the spans of f and its children.
func (d *document) forget(f *field) {
	if d.spans[f.slot].end == 0 {
		return
	}
	d.spans[f.slot] = span{}
	for _, c := range f.children {
		d.forget(c)
	}
}

func (d *document) array(*field) bool {
	d.space()
	if d.accept(']') {
		return true
	}
	for {
		if !d.value(nil) {
			return false
		}
		d.space()
		if d.accept(']') {
			return true
		}
		if !d.accept(',') {
			return false
		}
		d.space()
	}
}

// quoted skips a string and reports whether it contains escape sequences. ok is false if the string is invalid.
func (d *document) quoted() (escaped, ok bool) {
	if !d.accept('"') {
		return false, false
	}
	for d.at < len(d.text) {
		c := d.text[d.at]
		d.at++
		switch {
		case c == '"':
			return escaped, true
		case c < ' ':
			return escaped, false
		case c == '\\':
			escaped = true
			if !d.escape() {
				return escaped, false
			}
		}
	}
	return escaped, false
}

func (d *document) escape() bool {
	if d.at == len(d.text) {
		return false
	}
	c := d.text[d.at]
	d.at++
	if c != 'u' {
		return bytes.IndexByte([]byte(`"\/bfnrt`), c) >= 0
	}
	if len(d.text)-d.at < 4 {
		return false
	}
	for range 4 {
		if !isHex(d.text[d.at]) {
			return false
		}
		d.at++
	}
	return true
}

func isHex(c byte) bool {
	return c >= '0' && c <= '9' || c >= 'a' && c <= 'f' || c >= 'A' && c <= 'F'
}

func (d *document) word(w string) bool {
	if !bytes.HasPrefix(d.text[d.at:], []byte(w)) {
		return false
	}
	d.at += len(w)
	return true
}

func (d *document) digits() bool {
	start := d.at
	for d.at < len(d.text) && d.text[d.at] >= '0' && d.text[d.at] <= '9' {
		d.at++
	}
	return d.at > start
}

func (d *document) number() bool {
	d.accept('-')
	if !d.accept('0') && !d.digits() {
		return false
	}
	if d.accept('.') && !d.digits() {
		return false
	}
	if d.accept('e') || d.accept('E') {
		if !d.accept('+') {
			d.accept('-')
		}
		return d.digits()
	}
	return true
}

// raw returns the text of a field's value, or nil if the field is missing.
func (d *document) raw(f *field) []byte {
	s := d.spans[f.slot]
	if s.end == 0 {
		return nil
	}
	return d.text[s.start:s.end]
}

// decode returns the value of a field for CEL. Unless the expression uses the whole value, an object contains only the
// named fields. ok is false if the field is missing.
func (d *document) decode(f *field) (v any, ok bool) {
	s := d.spans[f.slot]
	if s.end == 0 {
		return nil, false
	}
	if !f.whole && d.text[s.start] == '[' {
		return []any{}, true // CEL then reports an error for the selection of a field of a list
	}
	if f.whole || d.text[s.start] != '{' {
		d.at = s.start
		return d.decodeNext(), true
	}
	m := make(map[string]any, len(f.children))
	for _, c := range f.children {
		if v, ok := d.decode(c); ok {
			m[c.key] = v
		}
	}
	return m, true
}

// decodeNext decodes the value at d.at, which parse has verified.
func (d *document) decodeNext() any {
	if d.values--; d.values < 0 {
		d.limited = true
		return nil
	}
	switch c := d.text[d.at]; c {
	case '{':
		return d.decodeObject()
	case '[':
		return d.decodeArray()
	case '"':
		return d.decodeString()
	case 't':
		d.at += len("true")
		return true
	case 'f':
		d.at += len("false")
		return false
	case 'n':
		d.at += len("null")
		return nil
	}
	start := d.at
	d.number()
	return number(d.text[start:d.at])
}

func (d *document) decodeString() string {
	start := d.at
	escaped, _ := d.quoted()
	text := d.text[start+1 : d.at-1]
	if escaped {
		return string(unquote(nil, text))
	}
	return string(text)
}

func (d *document) decodeObject() any {
	m := make(map[string]any)
	d.at++
	for d.space(); !d.accept('}') && !d.limited; d.space() {
		key := d.decodeString()
		d.space()
		d.accept(':')
		d.space()
		m[key] = d.decodeNext()
		d.space()
		d.accept(',')
	}
	return m
}

func (d *document) decodeArray() any {
	list := []any{}
	d.at++
	for d.space(); !d.accept(']') && !d.limited; d.space() {
		list = append(list, d.decodeNext())
		d.space()
		d.accept(',')
	}
	return list
}

// number converts a JSON number to int64, or to uint64 if it does not fit into int64. Fractions, numbers with an
// exponent, and larger integers become float64.
func number(text []byte) any {
	s := string(text)
	if !bytes.ContainsAny(text, ".eE") {
		if n, err := strconv.ParseInt(s, 10, 64); err == nil {
			return n
		}
		if n, err := strconv.ParseUint(s, 10, 64); err == nil {
			return n
		}
	}
	f, _ := strconv.ParseFloat(s, 64) // infinite if the number is out of range
	return f
}

// unquote appends the content of a valid string to dst, and replaces escape sequences. An unpaired surrogate
// becomes U+FFFD.
func unquote(dst, text []byte) []byte {
	for len(text) > 0 {
		at := bytes.IndexByte(text, '\\')
		if at < 0 {
			return append(dst, text...)
		}
		dst = append(dst, text[:at]...)
		c := text[at+1]
		text = text[at+2:]
		switch c {
		case 'b':
			c = '\b'
		case 'f':
			c = '\f'
		case 'n':
			c = '\n'
		case 'r':
			c = '\r'
		case 't':
			c = '\t'
		case 'u':
			r := hex4(text)
			text = text[4:]
			if utf16.IsSurrogate(r) {
				pair := rune(utf8.RuneError)
				if len(text) >= 6 && text[0] == '\\' && text[1] == 'u' {
					pair = utf16.DecodeRune(r, hex4(text[2:]))
				}
				if r = pair; pair != utf8.RuneError {
					text = text[6:]
				}
			}
			dst = utf8.AppendRune(dst, r)
			continue
		}
		dst = append(dst, c)
	}
	return dst
}

func hex4(text []byte) (r rune) {
	for _, c := range text[:4] {
		switch {
		case c <= '9':
			c -= '0'
		case c >= 'a':
			c -= 'a' - 10
		default:
			c -= 'A' - 10
		}
		r = r<<4 | rune(c)
	}
	return r
}
