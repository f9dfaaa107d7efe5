// SPDX-License-Identifier: Apache-2.0

package filter

import (
	"slices"
	"strings"

	celast "cel.dev/cel-go/common/ast"
	"cel.dev/cel-go/common/operators"
	"cel.dev/cel-go/common/types"
)

// uses contains the parts of a message that an expression names. Only these are decoded.
type uses struct {
	properties    []string
	allProperties bool
	body          *field // root of the fields that the expression names; nil if the body is not used
	fields        int    // number of fields in body
}

// collect adds the parts of the message that e names. A comprehension variable with the name of a part counts as
// that part, which only increases the cost.
func (u *uses) collect(e celast.Expr) {
	if root, path := pathOf(e); root != "" {
		u.add(root, path)
		return
	}
	switch e.Kind() { //nolint:exhaustive // other kinds have no operands
	case celast.CallKind:
		call := e.AsCall()
		if call.IsMemberFunction() {
			u.collect(call.Target())
		}
		u.collectAll(call.Args())
	case celast.ComprehensionKind:
		c := e.AsComprehension()
		u.collectAll([]celast.Expr{c.IterRange(), c.AccuInit(), c.LoopCondition(), c.LoopStep(), c.Result()})
	case celast.ListKind:
		u.collectAll(e.AsList().Elements())
	case celast.MapKind:
		for _, entry := range e.AsMap().Entries() {
			u.collectAll([]celast.Expr{entry.AsMapEntry().Key(), entry.AsMapEntry().Value()})
		}
	case celast.SelectKind:
		u.collect(e.AsSelect().Operand())
	case celast.StructKind:
		for _, entry := range e.AsStruct().Fields() {
			u.collect(entry.AsStructField().Value())
		}
	}
}

func (u *uses) collectAll(list []celast.Expr) {
	for _, e := range list {
		u.collect(e)
	}
}

func (u *uses) add(root string, path []string) {
	switch {
	case root == varBody:
		f := u.field(path, true)
		f.whole = true
	case len(path) == 0:
		u.allProperties = true
	case !slices.Contains(u.properties, path[0]):
		u.properties = append(u.properties, path[0])
	}
}

// field returns the field at a path. If the field is not in the tree, field adds it if create is set, and returns
// nil otherwise.
func (u *uses) field(path []string, create bool) *field {
	if u.body == nil {
		if !create {
			return nil
		}
		u.body, u.fields = &field{}, 1
	}
	f := u.body
	for _, key := range path {
		next := f.child([]byte(key))
		if next == nil {
			if !create {
				return nil
			}
			next = &field{key: key, slot: u.fields}
			u.fields++
			f.children = append(f.children, next)
		}
		f = next
	}
	return f
}

// pathOf splits an expression such as body.a["b"] into the variable (properties or body) and the keys. root is empty
// for other expressions.
func pathOf(e celast.Expr) (root string, path []string) {
	for {
		switch e.Kind() {
		case celast.IdentKind:
			name := strings.TrimPrefix(e.AsIdent(), ".")
			if name != varBody && name != varProperties {
				return "", nil
			}
			slices.Reverse(path)
			return name, path
		case celast.SelectKind:
			path, e = append(path, e.AsSelect().FieldName()), e.AsSelect().Operand()
		case celast.CallKind:
			call := e.AsCall()
			if call.FunctionName() != operators.Index || len(call.Args()) != 2 {
				return "", nil
			}
			key, ok := literal(call.Args()[1]).(types.String)
			if !ok {
				return "", nil
			}
			path, e = append(path, string(key)), call.Args()[0]
		default:
			return "", nil
		}
	}
}

func literal(e celast.Expr) any {
	if e.Kind() != celast.LiteralKind {
		return nil
	}
	return e.AsLiteral()
}
