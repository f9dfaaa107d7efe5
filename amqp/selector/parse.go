// SPDX-License-Identifier: Apache-2.0

package selector

import "unicode/utf8"

const (
	// MaxBytes is the maximum length of a selector.
	MaxBytes = 4 << 10
	// MaxDepth is the maximum nesting depth of parentheses, NOT and signs.
	MaxDepth = 12
	// MaxOperands is the maximum number of operands in one calculation.
	MaxOperands = 16
)

type parser struct {
	text   string
	offset int // end of token in text
	token  token
	depth  int
}

// Conditions are truth values; other expressions are numbers, strings or booleans.
type (
	node any
	// logical is AND or OR of at least two conditions.
	logical struct {
		or    bool
		parts []node
	}
	negation   struct{ of node }
	comparison struct {
		op          string // = <> < <= > >=
		left, right node
	}
	like struct {
		of      name
		not     bool
		pattern []patternPart
	}
	oneOf struct {
		of     name
		not    bool
		values []string
	}
	isNull struct {
		of  name
		not bool
	}
	truth bool
	name  struct {
		text string
		at   int
	}
	arithmetic struct {
		op          byte // + - * /
		left, right node
		operands    int // number of names and constants in the calculation
	}
	minus struct{ of node }
)

// patternPart is literal text followed by a wildcard: any text (%), one character (_) or, at the end, none.
type patternPart struct {
	text     string
	wildcard byte // '%', '_' or 0
}

func parse(selector string) (node, error) {
	p := &parser{text: selector}
	switch {
	case len(selector) > MaxBytes:
		return nil, p.invalid(0, "has %d bytes, maximum is %d", len(selector), MaxBytes)
	case !utf8.ValidString(selector):
		return nil, p.invalid(0, "not UTF-8")
	}
	if err := p.advance(); err != nil {
		return nil, err
	}
	n, err := p.or()
	if err != nil {
		return nil, err
	}
	if p.token.kind != end {
		return nil, p.invalid(p.token.at, "unexpected %s", p.token.describe())
	}
	return n, p.condition(n, 0)
}

func (p *parser) condition(n node, at int) error {
	switch n := n.(type) {
	case logical, negation, comparison, like, oneOf, isNull, truth:
		return nil
	case name:
		if k := kindOf(n); k != property && k != durable {
			return p.invalid(n.at, "%.40s is not a condition: add a comparison", n.text)
		}
		return nil
	}
	return p.invalid(at, "not a condition: add a comparison")
}

// enter increments the depth; the caller decrements p.depth.
func (p *parser) enter() error {
	if p.depth++; p.depth > MaxDepth {
		return p.invalid(p.token.at, "parentheses, NOT and signs nested deeper than %d", MaxDepth)
	}
	return nil
}

func (p *parser) take(word string) (bool, error) {
	if !p.token.is(word) {
		return false, nil
	}
	return true, p.advance()
}

func (p *parser) expect(word string) error {
	ok, err := p.take(word)
	if err == nil && !ok {
		err = p.invalid(p.token.at, "unexpected %s, expected %s", p.token.describe(), word)
	}
	return err
}

func (p *parser) or() (node, error)  { return p.chain("OR", p.and) }
func (p *parser) and() (node, error) { return p.chain("AND", p.not) }

func (p *parser) chain(word string, part func() (node, error)) (node, error) {
	at := p.token.at
	first, err := part()
	if err != nil || !p.token.is(word) {
		return first, err
	}
	if err := p.condition(first, at); err != nil {
		return nil, err
	}
	all := logical{or: word == "OR", parts: []node{first}}
	for {
		ok, err := p.take(word)
		if err != nil || !ok {
			return all, err
		}
		at := p.token.at
		n, err := part()
		if err != nil {
			return nil, err
		}
		if err := p.condition(n, at); err != nil {
			return nil, err
		}
		all.parts = append(all.parts, n)
	}
}

func (p *parser) not() (node, error) {
	ok, err := p.take("NOT")
	if err != nil {
		return nil, err
	}
	if !ok {
		return p.compare()
	}
	if err := p.enter(); err != nil {
		return nil, err
	}
	defer func() { p.depth-- }()
	at := p.token.at
	n, err := p.not()
	if err != nil {
		return nil, err
	}
	return negation{n}, p.condition(n, at)
}

func (p *parser) compare() (node, error) {
	at := p.token.at
	left, err := p.sum()
	if err != nil {
		return nil, err
	}
	not, err := p.take("NOT")
	if err != nil {
		return nil, err
	}
	switch {
	case p.token.is("BETWEEN"):
		return p.between(left, not, at)
	case p.token.is("LIKE"), p.token.is("IN"):
		of, ok := left.(name)
		if !ok {
			return nil, p.invalid(at, "missing identifier before %s", p.token.text)
		}
		if p.token.is("IN") {
			return p.in(of, not)
		}
		return p.like(of, not)
	case not:
		return nil, p.invalid(p.token.at, "unexpected %s, expected BETWEEN, LIKE or IN", p.token.describe())
	case p.token.is("IS"):
		return p.isNull(left, at)
	}
	if p.token.kind == operator {
		switch op := p.token.text; op {
		case "=", "<>", "<", "<=", ">", ">=":
			return p.comparison(op, left, at)
		}
	}
	return left, nil
}

func (p *parser) comparison(op string, left node, at int) (node, error) {
	if err := p.advance(); err != nil {
		return nil, err
	}
	rightAt := p.token.at
	right, err := p.sum()
	if err != nil {
		return nil, err
	}
	if err := p.comparable(op, left, at); err != nil {
		return nil, err
	}
	return comparison{op, left, right}, p.comparable(op, right, rightAt)
}

func (p *parser) comparable(op string, n node, at int) error {
	if op == "=" || op == "<>" {
		return nil
	}
	switch n := n.(type) {
	case string:
		return p.invalid(at, "strings can only be compared with = or <>, not %s", op)
	case name:
		if k := kindOf(n); k == header || k == mode || k == durable {
			return p.invalid(at, "%.40s can only be compared with = or <>, not %s", n.text, op)
		}
	case int64, float64, arithmetic, minus:
	default:
		return p.invalid(at, "booleans can only be compared with = or <>, not %s", op)
	}
	return nil
}

// between parses the operands of BETWEEN, and returns them as two comparisons.
func (p *parser) between(of node, not bool, at int) (node, error) {
	if err := p.advance(); err != nil {
		return nil, err
	}
	lowAt := p.token.at
	low, err := p.sum()
	if err != nil {
		return nil, err
	}
	if err := p.expect("AND"); err != nil {
		return nil, err
	}
	highAt := p.token.at
	high, err := p.sum()
	if err != nil {
		return nil, err
	}
	for _, operand := range [...]struct {
		n  node
		at int
	}{{of, at}, {low, lowAt}, {high, highAt}} {
		if err := p.comparable("BETWEEN", operand.n, operand.at); err != nil {
			return nil, err
		}
	}
	if not {
		return logical{true, []node{comparison{"<", of, low}, comparison{">", of, high}}}, nil
	}
	return logical{false, []node{comparison{">=", of, low}, comparison{"<=", of, high}}}, nil
}

func (p *parser) in(of name, not bool) (node, error) {
	if err := p.advance(); err != nil {
		return nil, err
	}
	if err := p.expect("("); err != nil {
		return nil, err
	}
	n := oneOf{of: of, not: not}
	for {
		if p.token.kind != text {
			return nil, p.invalid(p.token.at, "unexpected %s, expected a quoted string", p.token.describe())
		}
		n.values = append(n.values, p.token.text)
		if err := p.advance(); err != nil {
			return nil, err
		}
		if more, err := p.take(","); err != nil || !more {
			if err == nil {
				err = p.expect(")")
			}
			return n, err
		}
	}
}

func (p *parser) isNull(left node, at int) (node, error) {
	of, ok := left.(name)
	if !ok {
		return nil, p.invalid(at, "missing identifier before IS NULL")
	}
	if err := p.advance(); err != nil {
		return nil, err
	}
	not, err := p.take("NOT")
	if err != nil {
		return nil, err
	}
	return isNull{of, not}, p.expect("NULL")
}

func (p *parser) like(of name, not bool) (node, error) {
	if err := p.advance(); err != nil {
		return nil, err
	}
	if k := kindOf(of); k == number || k == durable {
		return nil, p.invalid(of.at, "%s is not a string, as LIKE requires", of.text)
	}
	pattern := p.token
	if pattern.kind != text {
		return nil, p.invalid(pattern.at, "unexpected %s, expected a quoted pattern", pattern.describe())
	}
	if err := p.advance(); err != nil {
		return nil, err
	}
	escape := rune(-1)
	ok, err := p.take("ESCAPE")
	if err != nil {
		return nil, err
	}
	if ok {
		r, n := utf8.DecodeRuneInString(p.token.text)
		if p.token.kind != text || n == 0 || n != len(p.token.text) {
			return nil, p.invalid(p.token.at, "unexpected %s, expected one quoted character", p.token.describe())
		}
		escape = r
		if err := p.advance(); err != nil {
			return nil, err
		}
	}
	parts, ok := splitPattern(pattern.text, escape)
	if !ok {
		return nil, p.invalid(pattern.at, "pattern ends with the escape character")
	}
	return like{of, not, parts}, nil
}

func splitPattern(pattern string, escape rune) (parts []patternPart, ok bool) {
	var part patternPart
	escaped := false
	for _, r := range pattern {
		switch {
		case escaped:
			part.text += string(r)
			escaped = false
		case r == escape:
			escaped = true
		case r == '%' || r == '_':
			part.wildcard = byte(r)
			parts = append(parts, part)
			part = patternPart{}
		default:
			part.text += string(r)
		}
	}
	return append(parts, part), !escaped
}

func (p *parser) primary() (node, error) {
	t := p.token
	switch {
	case t.kind == integer && t.bits == 1<<63:
		return nil, p.invalid(t.at, "%d is out of the range of a long", t.bits)
	case t.kind == integer:
		return int64(t.bits), p.advance()
	case t.kind == float:
		return t.number, p.advance()
	case t.kind == text:
		return t.text, p.advance()
	case t.is("TRUE"), t.is("FALSE"):
		return truth(t.text == "TRUE"), p.advance()
	case t.kind == identifier:
		if reason := refusedNames[t.text]; reason != "" {
			return nil, p.invalid(t.at, "%s cannot be used in a selector: %s", t.text, reason)
		}
		return name{t.text, t.at}, p.advance()
	case t.is("NULL"):
		return nil, p.invalid(t.at, "no comparison with NULL; use IS NULL or IS NOT NULL")
	case !t.is("("):
		return nil, p.invalid(t.at, "unexpected %s, expected an identifier, a literal or a parenthesis", t.describe())
	}
	if err := p.enter(); err != nil {
		return nil, err
	}
	defer func() { p.depth-- }()
	if err := p.advance(); err != nil {
		return nil, err
	}
	n, err := p.or()
	if err != nil {
		return nil, err
	}
	return n, p.expect(")")
}
