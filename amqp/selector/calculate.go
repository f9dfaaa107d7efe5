// SPDX-License-Identifier: Apache-2.0

package selector

import "math"

func (p *parser) sum() (node, error)     { return p.binary("+", "-", p.product) }
func (p *parser) product() (node, error) { return p.binary("*", "/", p.signed) }

func (p *parser) binary(one, other string, operand func() (node, error)) (node, error) {
	at := p.token.at
	left, err := operand()
	for err == nil && (p.token.is(one) || p.token.is(other)) {
		op := p.token
		if err := p.numeric(left, at); err != nil {
			return nil, err
		}
		if err := p.advance(); err != nil {
			return nil, err
		}
		rightAt := p.token.at
		right, err := operand()
		if err != nil {
			return nil, err
		}
		if err := p.numeric(right, rightAt); err != nil {
			return nil, err
		}
		if left, err = p.calculate(op, left, right); err != nil {
			return nil, err
		}
	}
	return left, err
}

func (p *parser) numeric(n node, at int) error {
	switch n := n.(type) {
	case int64, float64, arithmetic, minus:
		return nil
	case name:
		if k := kindOf(n); k == property || k == number {
			return nil
		}
	}
	return p.invalid(at, "operand is not a number")
}

// calculate returns the result of an operation on constants, or a node for an operation with other operands. It
// returns an error if a constant is divided by 0, if a result of constants is not a finite double, and for more than
// MaxOperands operands.
func (p *parser) calculate(op token, left, right node) (node, error) {
	l, lInt := left.(int64)
	r, rInt := right.(int64)
	if lInt && rInt {
		switch op.text {
		case "+":
			return l + r, nil
		case "-":
			return l - r, nil
		case "*":
			return l * r, nil
		}
		if r == 0 {
			return nil, p.invalid(op.at, "division by zero")
		}
		return l / r, nil
	}
	lf, lNumber := toFloat(left)
	rf, rNumber := toFloat(right)
	if !lNumber || !rNumber {
		n := operands(left) + operands(right)
		if n > MaxOperands {
			return nil, p.invalid(op.at, "expression has more than %d operands", MaxOperands)
		}
		return arithmetic{op.text[0], left, right, n}, nil
	}
	v := 0.0
	switch op.text {
	case "+":
		v = lf + rf
	case "-":
		v = lf - rf
	case "*":
		v = lf * rf
	default:
		v = lf / rf
	}
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return nil, p.invalid(op.at, "result is out of the range of a double")
	}
	return v, nil
}

func operands(n node) int {
	switch n := n.(type) {
	case arithmetic:
		return n.operands
	case minus:
		return operands(n.of)
	}
	return 1
}

func toFloat(n node) (v float64, ok bool) {
	switch n := n.(type) {
	case int64:
		return float64(n), true
	case float64:
		return n, true
	}
	return 0, false
}

func (p *parser) signed() (node, error) {
	sign := p.token
	if !sign.is("-") && !sign.is("+") {
		return p.primary()
	}
	if err := p.enter(); err != nil {
		return nil, err
	}
	defer func() { p.depth-- }()
	if err := p.advance(); err != nil {
		return nil, err
	}
	at := p.token.at
	if p.token.kind == integer && p.token.bits == 1<<63 && sign.is("-") {
		return int64(math.MinInt64), p.advance()
	}
	n, err := p.signed()
	if err != nil {
		return nil, err
	}
	if err := p.numeric(n, at); err != nil || sign.is("+") {
		return n, err
	}
	switch v := n.(type) {
	case int64:
		return -v, nil
	case float64:
		return -v, nil
	}
	return minus{n}, nil
}
