// SPDX-License-Identifier: Apache-2.0

package selector

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
)

const isNumber = " in [int, double]"

func (w *writer) comparison(c comparison, exact bool) {
	left, right, op := c.left, c.right, c.op
	if isConstant(left) && !isConstant(right) {
		left, right, op = right, left, mirrored[op]
	}
	l, leftNamed := left.(name)
	r, rightNamed := right.(name)
	switch {
	case isConstant(left):
		w.add(strconv.FormatBool(constants(op, left, right)))
	case leftNamed && isConstant(right):
		w.nameAndConstant(op, l, right, exact)
	case leftNamed && rightNamed:
		w.names(op, l, r)
	case isCondition(left) || isCondition(right):
		w.truths(op, left, right)
	default:
		w.numbers(op, left, right)
	}
}

func isConstant(n node) bool {
	switch n.(type) {
	case int64, float64, string, truth:
		return true
	}
	return false
}

func isCalculated(n node) bool {
	switch n.(type) {
	case arithmetic, minus:
		return true
	}
	return false
}

// mirrored maps each comparison operator to the equivalent operator for exchanged operands.
var mirrored = map[string]string{ //nolint:gochecknoglobals // a table
	"=": "=", "<>": "<>", "<": ">", "<=": ">=", ">": "<", ">=": "<=",
}

// constants returns the result of a comparison of two constants. Constants of different types are neither equal nor
// unequal.
func constants(op string, left, right node) bool {
	var order int
	switch l := left.(type) {
	case string:
		r, ok := right.(string)
		if !ok {
			return false
		}
		order = cmp.Compare(l, r)
	case truth:
		r, ok := right.(truth)
		if !ok {
			return false
		}
		if l != r {
			order = 1
		}
	default:
		lf, _ := toFloat(left)
		rf, ok := toFloat(right)
		if !ok {
			return false
		}
		order = cmp.Compare(lf, rf)
		if li, ok := left.(int64); ok {
			if ri, ok := right.(int64); ok {
				order = cmp.Compare(li, ri)
			}
		}
	}
	switch op {
	case "=":
		return order == 0
	case "<>":
		return order != 0
	case "<":
		return order < 0
	case "<=":
		return order <= 0
	case ">":
		return order > 0
	default:
		return order >= 0
	}
}

func celOperator(op string) string {
	switch op {
	case "=":
		return " == "
	case "<>":
		return " != "
	}
	return " " + op + " "
}

// celFloat formats a double so that CEL does not parse it as an integer.
func celFloat(v float64) string {
	s := strconv.FormatFloat(v, 'g', -1, 64)
	if !strings.ContainsAny(s, ".e") {
		s += ".0"
	}
	return s
}

func constantFor(n name, constant node) string {
	switch c := constant.(type) {
	case string:
		return literalFor(n, c)
	case truth:
		return strconv.FormatBool(bool(c))
	case int64:
		return strconv.FormatInt(c, 10)
	default:
		f, _ := toFloat(constant)
		return celFloat(f)
	}
}

func sameType(of string, constant node) string {
	switch constant.(type) {
	case string:
		return "type(" + of + ") == string"
	case truth:
		return "type(" + of + ") == bool"
	default:
		return "type(" + of + ")" + isNumber
	}
}

// truths writes the comparison of a condition with an operand of any type.
func (w *writer) truths(op string, left, right node) {
	if !isCondition(left) {
		left, right = right, left
	}
	n, named := right.(name)
	switch {
	case named && kindOf(n) != property && kindOf(n) != durable, !named && !isCondition(right):
		w.add("false")
		return
	case named && kindOf(n) == property && op == "<>":
		w.add("(", sameType(identifierOf(n), truth(true)), " && ")
	default:
		w.add("(")
	}
	w.condition(left, true)
	w.add(celOperator(op))
	if named {
		w.add(identifierOf(n), ")")
		return
	}
	w.condition(right, true)
	w.add(")")
}

func (w *writer) nameAndConstant(op string, n name, constant node, exact bool) {
	kind := kindOf(n)
	if kind == header {
		w.headerAndConstant(op, n, constant, exact)
		return
	}
	of, value := identifierOf(n), constantFor(n, constant)
	if kind == property {
		// For another type, == is false, != is true, and < is an error: != always needs a type test, < only with exact.
		if op == "<>" || op != "=" && exact {
			w.add("(", sameType(of, constant), " && ", of, celOperator(op), value, ")")
		} else {
			w.add("(", of, celOperator(op), value, ")")
		}
		return
	}
	same := false
	switch c := constant.(type) {
	case string:
		if kind == mode {
			w.add(modeIs(c, op == "="))
			return
		}
	case truth:
		same = kind == durable
	default:
		same = kind == number
	}
	if !same {
		w.add("false")
		return
	}
	w.add("(dyn(", of, ")", celOperator(op), value, ")")
}

func modeIs(text string, is bool) string {
	switch {
	case text != persistent && text != nonPersistent:
		return strconv.FormatBool(!is)
	case (text == persistent) == is:
		return "!" + notDurable
	}
	return notDurable
}

// headerAndConstant writes the comparison of a header, which may be null, with a literal.
func (w *writer) headerAndConstant(op string, n name, constant node, exact bool) {
	text, isText := constant.(string)
	of := identifierOf(n)
	switch value := constantFor(n, constant); {
	case exact && (!isText || op == "="):
		if !isText { // false unless the header is null, because a header is a string
			op, value = "=", "0"
		}
		w.add("(dyn(", strictly(n), ")", celOperator(op), value, ")")
	case exact:
		w.add("(", strictly(n), " != ", value, ")")
	case !isText, op == "=" && text == "":
		w.add("false")
	case op == "=":
		w.add("(", of, " == ", value, ")")
	default:
		w.add("(", of, ` != "" && `, of, " != ", value, ")")
	}
}

func (w *writer) names(op string, left, right name) {
	l, r := "dyn("+strictly(left)+")", "dyn("+strictly(right)+")"
	switch {
	case op == "=":
		w.add("(", l, " == ", r, ")")
	case op == "<>":
		w.add("((type(", l, ") == type(", r, ") || [", l, ", ", r, "].all(v, type(v)", isNumber, ")) && ", l, " != ", r,
			")")
	default:
		w.add("([", l, ", ", r, "].all(v, type(v)", isNumber, ") && ", l, celOperator(op), r, ")")
	}
}

// numbers writes the comparison of a calculation with a number or an identifier.
func (w *writer) numbers(op string, left, right node) {
	for _, n := range [...]node{left, right} {
		if isConstant(n) {
			if _, ok := toFloat(n); !ok {
				w.notNumber(left, right)
				return
			}
		}
		if of, ok := n.(name); ok && kindOf(of) != property && kindOf(of) != number {
			w.notNumber(left, right)
			return
		}
	}
	w.add("(")
	for _, n := range [...]node{left, right} {
		if of, ok := n.(name); ok && kindOf(of) == property && op != "=" {
			w.add(sameType(identifierOf(of), int64(0)), " && ")
		}
	}
	w.add("dyn(")
	w.number(left)
	w.add(")", celOperator(op), "dyn(")
	w.number(right)
	w.add("))")
}

// notNumber writes the comparison of a number with a non-number: false, or unknown if one of the operands is
// unknown.
func (w *writer) notNumber(left, right node) {
	w.add("(dyn(")
	w.operand(left)
	w.add(") == b\"\" && dyn(")
	w.operand(right)
	w.add(") == b\"\")")
}

func (w *writer) operand(n node) {
	switch n := n.(type) {
	case name:
		w.add(strictly(n))
	case string:
		w.add(strconv.Quote(n))
	case truth:
		w.add(strconv.FormatBool(bool(n)))
	default:
		w.number(n)
	}
}

// number writes a numeric expression. With a floating-point constant, it is calculated in doubles, except
// subexpressions without such a constant. Without one, it is calculated in integers if all its properties are integers,
// and completely in doubles otherwise. Java would also calculate an integer subexpression such as a/b in integers if
// another property is a double.
func (w *writer) number(n node) {
	switch n := n.(type) {
	case int64:
		w.add(strconv.FormatInt(n, 10))
		return
	case float64:
		w.add(celFloat(n))
		return
	case name:
		w.add(identifierOf(n))
		return
	}
	if hasFloat(n) {
		w.float(n)
		return
	}
	condition := integersOnly(n)
	if condition == "" {
		w.integer(n)
		return
	}
	w.add("(", condition, " ? dyn(")
	w.integer(n)
	w.add(") : dyn(")
	w.allFloat(n)
	w.add("))")
}

// hasFloat reports whether a constant makes the result a double.
func hasFloat(n node) bool {
	switch n := n.(type) {
	case float64:
		return true
	case minus:
		return hasFloat(n.of)
	case arithmetic:
		return hasFloat(n.left) || hasFloat(n.right)
	}
	return false
}

// integersOnly returns the condition that all properties of an expression are integers; "" without properties.
func integersOnly(n node) string {
	var conditions []string
	var visit func(node)
	visit = func(n node) {
		switch n := n.(type) {
		case name:
			is := "type(" + identifierOf(n) + ") == int"
			if kindOf(n) == property && !slices.Contains(conditions, is) {
				conditions = append(conditions, is)
			}
		case minus:
			visit(n.of)
		case arithmetic:
			visit(n.left)
			visit(n.right)
		}
	}
	visit(n)
	return strings.Join(conditions, " && ")
}

func (w *writer) integer(n node) {
	switch n := n.(type) {
	case minus:
		w.add("-(")
		w.integer(n.of)
		w.add(")")
	case arithmetic:
		w.add("(")
		w.integer(n.left)
		w.add(" ", string(n.op), " ")
		w.integer(n.right)
		w.add(")")
	case name:
		w.add("int(", identifierOf(n), ")")
	default:
		w.number(n)
	}
}

// float writes a number with a floating-point constant in doubles. Calculations in it without such a constant are
// written by number.
func (w *writer) float(n node) {
	if !hasFloat(n) && isCalculated(n) {
		w.add("double(")
		w.number(n)
		w.add(")")
		return
	}
	w.double(n, w.float)
}

func (w *writer) allFloat(n node) { w.double(n, w.allFloat) }

// double writes a number as a double, and its operands with the function operand. A non-number is a CEL error.
func (w *writer) double(n node, operand func(node)) {
	switch n := n.(type) {
	case int64:
		w.add(celFloat(float64(n)))
	case float64:
		w.add(celFloat(n))
	case name:
		of := identifierOf(n)
		if kindOf(n) == number {
			w.add("double(", of, ")")
		} else {
			w.add("(type(", of, ")", isNumber, " ? double(", of, ") : double(", null, "))")
		}
	case minus:
		w.add("-(")
		operand(n.of)
		w.add(")")
	case arithmetic:
		w.add("(")
		operand(n.left)
		w.add(" ", string(n.op), " ")
		operand(n.right)
		w.add(")")
	}
}
