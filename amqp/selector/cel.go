// SPDX-License-Identifier: Apache-2.0

package selector

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// MaxCELBytes is the maximum length of a translation, and of any filter.
const MaxCELBytes = 4 << 10

// ToCEL translates a selector to a CEL expression over the variables of a filter. The result of a blank selector,
// which selects all messages, is "". A selector is invalid if it has a syntax error, operands of the wrong type or an
// unsupported identifier, if it exceeds MaxBytes, MaxDepth or MaxOperands, or if its translation exceeds MaxCELBytes.
// The error wraps ErrInvalid. Except for MaxCELBytes, it contains the position of the character, beginning with 1.
func ToCEL(selector string) (string, error) {
	if strings.Trim(selector, " \t\r\n\f\v") == "" {
		return "", nil
	}
	n, err := parse(selector)
	if err != nil {
		return "", err
	}
	w := writer{}
	w.condition(n, false)
	if w.Len() > MaxCELBytes {
		return "", fmt.Errorf("%w: too long: translated filter exceeds %d bytes", ErrInvalid,
			MaxCELBytes)
	}
	return w.String(), nil
}

// writer writes CEL. It drops output above MaxCELBytes, which ToCEL rejects at the end. Each node is written a bounded
// number of times.
type writer struct{ strings.Builder }

func (w *writer) add(parts ...string) {
	if w.Len() > MaxCELBytes {
		return
	}
	for _, part := range parts {
		w.WriteString(part)
	}
}

// condition writes a condition. Unless exact is set, unknown may be written as false.
func (w *writer) condition(n node, exact bool) {
	switch n := n.(type) {
	case logical:
		word := " && "
		if n.or {
			word = " || "
		}
		w.add("(")
		for i, part := range n.parts {
			if i > 0 {
				w.add(word)
			}
			w.condition(part, exact)
		}
		w.add(")")
	case negation:
		w.add("!(")
		w.condition(n.of, true)
		w.add(")")
	case truth:
		w.add(strconv.FormatBool(bool(n)))
	case name: // a property or durable: parse rejects other names
		w.add("(", identifierOf(n), " == true)")
	case isNull:
		w.isNull(n)
	case oneOf:
		w.oneOf(n)
	case like:
		w.like(n)
	case comparison:
		w.comparison(n, exact)
	}
}

func isCondition(n node) bool {
	switch n.(type) {
	case logical, negation, truth, isNull, oneOf, like, comparison:
		return true
	}
	return false
}

// identifierOf returns a name in CEL; a header that is null has the value "".
func identifierOf(n name) string {
	if m, ok := headerNames[n.text]; ok {
		return m.cel
	}
	return "properties[" + strconv.Quote(n.text) + "]"
}

// strictly is like identifierOf, except that the result for a null header is a CEL error.
func strictly(n name) string {
	if kindOf(n) != header {
		return identifierOf(n)
	}
	return `(` + identifierOf(n) + ` == "" ? ` + null + ` : ` + identifierOf(n) + `)`
}

func (w *writer) isNull(n isNull) {
	not := ""
	switch kindOf(n.of) {
	case property:
		if !n.not {
			not = "!"
		}
		w.add(not, "(", strconv.Quote(n.of.text), " in properties)")
	case header:
		op := " == "
		if n.not {
			op = " != "
		}
		w.add("(", identifierOf(n.of), op, `"")`)
	default:
		w.add(strconv.FormatBool(n.not))
	}
}

func (w *writer) oneOf(n oneOf) {
	if k := kindOf(n.of); k == number || k == durable {
		w.add(strconv.FormatBool(n.not)) // its type differs from the type of every element
		return
	}
	if n.not {
		w.add("!")
	}
	w.add("(")
	w.add(strictly(n.of), " in [")
	for i, v := range n.values {
		if i > 0 {
			w.add(", ")
		}
		w.add(literalFor(n.of, v))
	}
	w.add("])")
}

// noPrefix is the prefix of JMSMessageID for a string message-id that does not begin with "ID:".
const noPrefix = "ID:AMQP_NO_PREFIX:"

func literalFor(n name, text string) string {
	if n.text == "JMSMessageID" || n.text == "amqp.message_id" {
		text = strings.TrimPrefix(text, noPrefix)
	}
	return strconv.Quote(text)
}

// like writes a LIKE or NOT LIKE as the cheapest equivalent expression.
func (w *writer) like(n like) {
	of := strictly(n.of)
	if n.not {
		w.add("!")
	}
	p := n.pattern
	first, last := p[0], p[len(p)-1]
	switch {
	case len(p) == 1 && kindOf(n.of) == property: // startsWith is an error for non-strings, == is not
		w.add("(", of, ".startsWith(", strconv.Quote(first.text), ") ? ", of, " == ", strconv.Quote(first.text), " : false)")
	case len(p) == 1:
		w.add("(", of, " == ", strconv.Quote(first.text), ")")
	case len(p) == 2 && first.wildcard == '%' && last.text == "":
		w.add(of, ".startsWith(", strconv.Quote(first.text), ")")
	case len(p) == 2 && first.wildcard == '%' && first.text == "":
		w.add(of, ".endsWith(", strconv.Quote(last.text), ")")
	case len(p) == 3 && first.wildcard == '%' && first.text == "" && p[1].wildcard == '%' && last.text == "":
		w.add(of, ".contains(", strconv.Quote(p[1].text), ")")
	default:
		var re strings.Builder
		re.WriteString("^(?s:")
		for _, part := range p {
			re.WriteString(regexp.QuoteMeta(part.text))
			switch part.wildcard {
			case '%':
				re.WriteString(".*")
			case '_':
				re.WriteString(".")
			}
		}
		re.WriteString(")$")
		w.add(of, ".matches(", strconv.Quote(re.String()), ")")
	}
}
