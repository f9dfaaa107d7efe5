// SPDX-License-Identifier: Apache-2.0

package selector

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// ErrInvalid is wrapped by the errors of ToCEL.
var ErrInvalid = errors.New("invalid selector")

func (p *parser) invalid(at int, format string, args ...any) error {
	return fmt.Errorf("%w: at character %d: %s", ErrInvalid, utf8.RuneCountInString(p.text[:at])+1,
		fmt.Sprintf(format, args...))
}

type kind uint8

const (
	end        kind = iota
	identifier      // text: its name
	keyword         // text: in capitals
	operator        // text: itself, != as <>
	text            // text: the string without quotes
	integer         // bits: its magnitude
	float           // number
)

type token struct {
	kind   kind
	at     int // offset in the selector, in bytes
	text   string
	bits   uint64
	number float64
}

// keywordNames are the reserved words of a selector, which are case-insensitive.
var keywordNames = map[string]bool{
	"AND": true, "OR": true, "NOT": true, "BETWEEN": true, "LIKE": true, "IN": true, "IS": true, "NULL": true,
	"TRUE": true, "FALSE": true, "ESCAPE": true,
}

func (t *token) is(word string) bool {
	return (t.kind == keyword || t.kind == operator) && t.text == word
}

func (t *token) describe() string {
	switch t.kind {
	case end:
		return "end"
	case integer:
		return strconv.FormatUint(t.bits, 10)
	case float:
		return celFloat(t.number)
	case text:
		return fmt.Sprintf("string %.40q", t.text)
	default:
		return fmt.Sprintf("%.40q", t.text)
	}
}

// advance reads the next token.
func (p *parser) advance() error {
	rest := strings.TrimLeft(p.text[p.offset:], " \t\r\n\f\v")
	p.token = token{at: len(p.text) - len(rest)}
	p.offset = p.token.at
	if rest == "" {
		return nil
	}
	first, _ := utf8.DecodeRuneInString(rest)
	switch {
	case isDigit(rest[0]) || rest[0] == '.' && len(rest) > 1 && isDigit(rest[1]):
		return p.lexNumber(rest)
	case rest[0] == '\'' || rest[0] == '"':
		return p.lexQuoted(rest)
	case isStart(first):
		p.lexWord(rest)
		return nil
	}
	for _, op := range [...]string{"<>", "!=", "<=", ">=", "=", "<", ">", "+", "-", "*", "/", "(", ")", ","} {
		if strings.HasPrefix(rest, op) {
			p.token.kind, p.token.text = operator, op
			if op == "!=" {
				p.token.text = "<>"
			}
			p.offset += len(op)
			return nil
		}
	}
	return p.invalid(p.token.at, "unexpected character %q", first)
}

func isDigit(c byte) bool { return c >= '0' && c <= '9' }

// isStart and isPart define the characters of an identifier: as in Java, and dots.
func isStart(r rune) bool {
	return unicode.In(r, unicode.L, unicode.Nl, unicode.Sc, unicode.Pc)
}

func isPart(r rune) bool {
	return r == '.' || isStart(r) || unicode.In(r, unicode.Nd, unicode.Mn, unicode.Mc)
}

func (p *parser) lexWord(rest string) {
	n := strings.IndexFunc(rest, func(r rune) bool { return !isPart(r) })
	if n < 0 {
		n = len(rest)
	}
	p.offset += n
	p.token.kind, p.token.text = identifier, rest[:n]
	if upper := strings.ToUpper(rest[:n]); keywordNames[upper] {
		p.token.kind, p.token.text = keyword, upper
	}
}

// lexQuoted reads a string in single quotes or an identifier in double quotes. Two consecutive quotes represent one.
func (p *parser) lexQuoted(rest string) error {
	quote := rest[:1]
	p.token.kind = text
	if quote == `"` {
		p.token.kind = identifier
	}
	for i := 1; ; {
		n := strings.Index(rest[i:], quote)
		if n < 0 {
			return p.invalid(p.token.at, "unterminated %s; double it inside the literal", quote)
		}
		p.token.text += rest[i : i+n]
		i += n + 1
		if !strings.HasPrefix(rest[i:], quote) {
			p.offset += i
			break
		}
		p.token.text += quote
		i++
	}
	if p.token.kind == identifier && p.token.text == "" {
		return p.invalid(p.token.at, "missing identifier name")
	}
	return nil
}

func (p *parser) lexNumber(rest string) error {
	digits := func(i int) int {
		for i < len(rest) && isDigit(rest[i]) {
			i++
		}
		return i
	}
	if len(rest) > 1 && (rest[:2] == "0x" || rest[:2] == "0X") {
		n := 2
		for n < len(rest) && strings.IndexByte("0123456789abcdefABCDEF", rest[n]) >= 0 {
			n++
		}
		return p.lexInteger(rest, n, rest[2:n], 16)
	}
	n := digits(0)
	whole, isFloat := n, false
	if n < len(rest) && rest[n] == '.' {
		n, isFloat = digits(n+1), true
	}
	if n < len(rest) && (rest[n] == 'e' || rest[n] == 'E') {
		i := n + 1
		if i < len(rest) && (rest[i] == '+' || rest[i] == '-') {
			i++
		}
		if e := digits(i); e > i {
			n, isFloat = e, true
		}
	}
	suffixed := n < len(rest) && strings.IndexByte("fFdD", rest[n]) >= 0
	if !isFloat && !suffixed {
		if whole > 1 && rest[0] == '0' {
			return p.lexInteger(rest, whole, rest[1:whole], 8)
		}
		return p.lexInteger(rest, whole, rest[:whole], 10)
	}
	v, err := strconv.ParseFloat(rest[:n], 64)
	if err != nil || math.IsInf(v, 0) {
		return p.invalid(p.token.at, "%.40s is out of the range of a double", rest[:n])
	}
	if suffixed {
		n++
	}
	p.token.kind, p.token.number = float, v
	p.offset += n
	return nil
}

func (p *parser) lexInteger(rest string, n int, digits string, base int) error {
	v, err := strconv.ParseUint(digits, base, 64)
	if err != nil || v > 1<<63 {
		return p.invalid(p.token.at, "%.40s is not an integer in the range of a long", rest[:n])
	}
	if n < len(rest) && (rest[n] == 'l' || rest[n] == 'L') {
		n++
	}
	p.token.kind, p.token.bits = integer, v
	p.offset += n
	return nil
}
