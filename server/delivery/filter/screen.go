// SPDX-License-Identifier: Apache-2.0

package filter

import (
	"bytes"
	"cmp"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	celast "cel.dev/cel-go/common/ast"
	"cel.dev/cel-go/common/operators"
	"cel.dev/cel-go/common/overloads"
	"cel.dev/cel-go/common/types"

	"github.com/lockstep-mq/lockstep/store/txn"
)

// screen is a necessary condition for the match of an expression. A message that does not meet the condition does not
// match. For the other messages, CEL evaluates the expression.
//
// An operand that is false or that fails is not true. Therefore a screen consists of conjunctions, disjunctions, and
// comparisons of a part of the message with literals.
type screen struct {
	op    string // LogicalAnd, LogicalOr, Has, or a comparison; from package operators or overloads
	parts []screen
	of    part
	with  []scalar
}

// part is a part of a message.
type part struct {
	name     string // name of the variable
	property string
	text     txn.Attribute
	body     *field
}

type scalarKind uint8

const (
	kindMissing scalarKind = iota
	kindUnknown            // the comparison is left to CEL
	kindOther              // bytes, null, list or map
	kindBoolean
	kindInteger
	kindDouble
	kindText
	kindInstant
)

type scalar struct {
	kind scalarKind
	n    int64 // an integer, or 0 or 1 for a boolean
	d    float64
	text []byte
	at   time.Time
}

// newScreen returns a necessary condition for a match of e. ok is false if none is known.
func newScreen(e celast.Expr, u *uses) (s screen, ok bool) {
	switch e.Kind() { //nolint:exhaustive // other kinds have no screen
	case celast.SelectKind:
		if s.of, ok = newPart(e, u); ok && e.AsSelect().IsTestOnly() {
			s.op = operators.Has
			return s, true
		}
	case celast.CallKind:
		call := e.AsCall()
		switch name := call.FunctionName(); name {
		case operators.LogicalAnd, operators.LogicalOr:
			return newJunction(name, call.Args(), u)
		case operators.In:
			if list := call.Args()[1]; list.Kind() == celast.ListKind {
				return newComparison(name, call.Args()[0], list.AsList().Elements(), u)
			}
		case overloads.StartsWith, overloads.EndsWith, overloads.Contains:
			if call.IsMemberFunction() {
				return newComparison(name, call.Target(), call.Args(), u)
			}
		case operators.Equals, operators.NotEquals, operators.Less, operators.LessEquals, operators.Greater,
			operators.GreaterEquals:
			a, b := call.Args()[0], call.Args()[1]
			if s, ok = newComparison(name, a, []celast.Expr{b}, u); !ok {
				s, ok = newComparison(mirrored(name), b, []celast.Expr{a}, u)
			}
			return s, ok
		}
	}
	return screen{}, false
}

func mirrored(op string) string {
	switch op {
	case operators.Less:
		return operators.Greater
	case operators.LessEquals:
		return operators.GreaterEquals
	case operators.Greater:
		return operators.Less
	case operators.GreaterEquals:
		return operators.LessEquals
	}
	return op
}

func newJunction(op string, operands []celast.Expr, u *uses) (s screen, ok bool) {
	s.op = op
	for _, e := range operands {
		p, ok := newScreen(e, u)
		if ok {
			s.parts = append(s.parts, p)
		} else if op == operators.LogicalOr {
			return screen{}, false
		}
	}
	// The parts that need the body come last.
	slices.SortStableFunc(s.parts, func(a, b screen) int { return cmp.Compare(a.cost(), b.cost()) })
	return s, len(s.parts) > 0
}

func (s *screen) cost() (n int) {
	if s.of.body != nil {
		return 1
	}
	for i := range s.parts {
		n = max(n, s.parts[i].cost())
	}
	return n
}

func newComparison(op string, of celast.Expr, with []celast.Expr, u *uses) (s screen, ok bool) {
	if s.of, ok = newPart(of, u); !ok {
		return screen{}, false
	}
	s.op = op
	for _, e := range with {
		v := newLiteral(e)
		if v.kind == kindUnknown {
			return screen{}, false
		}
		s.with = append(s.with, v)
	}
	return s, true
}

func newPart(e celast.Expr, u *uses) (p part, ok bool) {
	root, path := pathOf(e)
	switch {
	case root == varBody && len(path) > 0:
		p.body = u.field(path, false)
		return p, p.body != nil
	case root == varProperties && len(path) == 1:
		p.name, p.property = root, path[0]
		return p, true
	case root != "" || e.Kind() != celast.IdentKind:
		return p, false
	}
	p.name = strings.TrimPrefix(e.AsIdent(), ".")
	if p.text, ok = textNames[p.name]; ok {
		return p, true
	}
	switch p.name {
	case varPriority, varSize, varPublishedAt, varExpiresAt, varDeliverAt:
		return p, true
	}
	return p, false
}

func newLiteral(e celast.Expr) scalar {
	if e.Kind() == celast.CallKind {
		call := e.AsCall()
		if call.FunctionName() != overloads.TypeConvertTimestamp || len(call.Args()) != 1 {
			return scalar{kind: kindUnknown}
		}
		s, ok := literal(call.Args()[0]).(types.String)
		if !ok {
			return scalar{kind: kindUnknown}
		}
		if t, ok := s.ConvertToType(types.TimestampType).(types.Timestamp); ok {
			return scalar{kind: kindInstant, at: t.Time}
		}
		return scalar{kind: kindUnknown}
	}
	switch v := literal(e).(type) {
	case types.String:
		return scalar{kind: kindText, text: []byte(v)}
	case types.Int:
		return scalar{kind: kindInteger, n: int64(v)}
	case types.Double:
		return scalar{kind: kindDouble, d: float64(v)}
	case types.Bool:
		return boolScalar(bool(v))
	}
	return scalar{kind: kindUnknown}
}

func boolScalar(v bool) scalar {
	if v {
		return scalar{kind: kindBoolean, n: 1}
	}
	return scalar{kind: kindBoolean}
}

// possible reports whether the message may match.
func (s *screen) possible(a *activation) bool {
	switch s.op {
	case operators.LogicalAnd:
		for i := range s.parts {
			if !s.parts[i].possible(a) {
				return false
			}
		}
		return true
	case operators.LogicalOr:
		for i := range s.parts {
			if s.parts[i].possible(a) {
				return true
			}
		}
		return false
	}
	v := s.of.value(a)
	switch {
	case v.kind == kindMissing:
		return false
	case v.kind == kindUnknown || s.op == operators.Has:
		return true
	}
	for i := range s.with {
		if s.holds(&v, &s.with[i]) {
			return true
		}
	}
	return false
}

// holds reports whether the comparison of v with a literal is true or is left to CEL.
func (s *screen) holds(v, with *scalar) bool {
	same := v.kind == with.kind
	switch s.op {
	case overloads.StartsWith:
		return same && bytes.HasPrefix(v.text, with.text)
	case overloads.EndsWith:
		return same && bytes.HasSuffix(v.text, with.text)
	case overloads.Contains:
		return same && bytes.Contains(v.text, with.text)
	}
	if v.number() && with.number() && (!same || math.IsNaN(v.d) || math.IsNaN(with.d)) {
		return true
	}
	if !same {
		return s.op == operators.NotEquals
	}
	c := v.compare(with)
	switch s.op {
	case operators.Equals, operators.In:
		return c == 0
	case operators.NotEquals:
		return c != 0
	case operators.Less:
		return c < 0
	case operators.LessEquals:
		return c <= 0
	case operators.Greater:
		return c > 0
	case operators.GreaterEquals:
		return c >= 0
	}
	return true
}

func (v *scalar) number() bool { return v.kind == kindInteger || v.kind == kindDouble }

// compare compares v with a value of the same kind. It returns a result like cmp.Compare.
func (v *scalar) compare(with *scalar) int {
	switch v.kind { //nolint:exhaustive // other kinds use n
	case kindText:
		return bytes.Compare(v.text, with.text)
	case kindDouble:
		return cmp.Compare(v.d, with.d)
	case kindInstant:
		return v.at.Compare(with.at)
	}
	return cmp.Compare(v.n, with.n)
}

func (p *part) value(a *activation) scalar {
	switch {
	case p.body != nil:
		return a.field(p.body)
	case p.property != "":
		return a.property(p.property)
	case p.text != 0:
		return scalar{kind: kindText, text: txn.RecordAttribute(a.record, p.text)}
	}
	switch p.name {
	case varPriority:
		return scalar{kind: kindInteger, n: int64(txn.RecordPriority(a.record))}
	case varSize:
		return scalar{kind: kindInteger, n: int64(len(a.message.Body))}
	}
	at, _ := a.times(p.name)
	return scalar{kind: kindInstant, at: at}
}

func (a *activation) property(key string) (found scalar) {
	for k, v := range a.message.Properties {
		if string(k) == key {
			found = scalar{kind: kindText, text: v} // like the map for CEL, use the last value
		}
	}
	for k, v := range a.message.Values {
		if string(k) != key {
			continue
		}
		switch v.Kind {
		case txn.ValueBool:
			found = boolScalar(v.Bits != 0)
		case txn.ValueInt64:
			found = scalar{kind: kindInteger, n: int64(v.Bits)}
		case txn.ValueDouble:
			found = scalar{kind: kindDouble, d: math.Float64frombits(v.Bits)}
		default:
			found = scalar{kind: kindOther}
		}
	}
	return found
}

func (a *activation) field(f *field) scalar {
	if !a.parseBody() {
		return scalar{}
	}
	raw := a.document.raw(f)
	if len(raw) == 0 {
		return scalar{}
	}
	switch c := raw[0]; c {
	case '{', '[', 'n':
		return scalar{kind: kindOther}
	case 't', 'f':
		return boolScalar(c == 't')
	case '"':
		if bytes.IndexByte(raw, '\\') >= 0 {
			return scalar{kind: kindUnknown}
		}
		return scalar{kind: kindText, text: raw[1 : len(raw)-1]}
	}
	if len(raw) <= maxIntDigits && !bytes.ContainsAny(raw, ".eE") {
		n, err := strconv.ParseInt(string(raw), 10, 64)
		if err == nil {
			return scalar{kind: kindInteger, n: n}
		}
	}
	return scalar{kind: kindUnknown}
}

const maxIntDigits = 18 // an integer with this many digits always fits into int64
