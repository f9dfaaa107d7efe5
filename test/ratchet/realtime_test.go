// SPDX-License-Identifier: Apache-2.0

package ratchet

import (
	"go/ast"
	"go/build/constraint"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// shortest is the minimum timeout of a wait for a real event.
const shortest = time.Minute

// Tests of the default tier do not sleep, and do not fail because a machine is slow. The test counts time.Sleep,
// time.After, Never, timeouts below a minute and upper bounds on time.Since, in functions that a test calls outside of
// a synctest bubble.
func TestRealTime(t *testing.T) {
	packages := map[string][]*testFile{}
	for _, name := range files(t) {
		if !strings.HasSuffix(name, "_test.go") {
			continue
		}
		if f := parseTest(t, name); f != nil {
			dir := filepath.Dir(name)
			packages[dir] = append(packages[dir], f)
		}
	}
	require.NotEmpty(t, packages)
	found := map[string][]finding{}
	for _, all := range packages {
		newScan(all).findings(found)
	}
	check(t, "realtime.txt", found)
}

// The check finds each construct outside of bubbles, and none in a bubble.
func TestRealTimeFindsConstructs(t *testing.T) {
	const source = `package p
func TestA(t *testing.T) {
	time.Sleep(1)
	helper()
	synctest.Test(t, func(t *testing.T) { time.Sleep(1); inside() })
	bubble(t, func() { <-time.After(1) })
	require.Eventually(t, f, 2*patience, 1)
	require.Eventually(t, f, 20*patience, 1)
	took := time.Since(began)
	require.Less(t, took, time.Second)
}
const patience = 5 * time.Second
func helper() { context.WithTimeout(ctx, time.Second); require.Never(t, f, 1, 1) }
func inside() { time.Sleep(1) }
func bubble(t *testing.T, f func()) { synctest.Test(t, func(t *testing.T) { f() }) }
`
	fset := token.NewFileSet()
	f, err := parser.ParseFile(fset, "p_test.go", source, 0)
	require.NoError(t, err)
	found := map[string][]finding{}
	newScan([]*testFile{{name: "p_test.go", fset: fset, file: f}}).findings(found)
	var lines []int
	for _, f := range found["p_test.go"] {
		lines = append(lines, f.line)
	}
	slices.Sort(lines)
	require.Equal(t, []int{3, 7, 10, 13, 13}, lines)
}

// testFile is a parsed test file.
type testFile struct {
	name string
	fset *token.FileSet
	file *ast.File
}

// parseTest parses a file. It returns nil if the default tier does not compile the file.
func parseTest(t *testing.T, name string) *testFile {
	t.Helper()
	path := filepath.Join(root, name)
	source, err := os.ReadFile(path)
	require.NoError(t, err)
	for line := range strings.Lines(string(source)) {
		if !constraint.IsGoBuild(strings.TrimSpace(line)) {
			continue
		}
		expr, err := constraint.Parse(strings.TrimSpace(line))
		require.NoError(t, err, name)
		if !expr.Eval(func(tag string) bool { return slices.Contains([]string{"unix", "linux", "amd64"}, tag) }) {
			return nil
		}
	}
	fset := token.NewFileSet()
	f, err := parser.ParseFile(fset, path, source, 0)
	require.NoError(t, err)
	return &testFile{name: name, fset: fset, file: f}
}

// scan is the analysis of the test files of one directory. Functions and methods are identified only by their names.
type scan struct {
	files     []*testFile
	durations map[string]time.Duration // constants
	runners   map[string]bool          // functions that run their function argument in a bubble
	refs      map[string][]string      // names that a function uses outside of bubbles
	hits      map[string][]hit
}

type hit struct {
	file string
	finding
}

func newScan(files []*testFile) *scan {
	s := &scan{
		files: files, durations: map[string]time.Duration{}, runners: map[string]bool{}, refs: map[string][]string{},
		hits: map[string][]hit{},
	}
	for range 3 { // constants may be defined by other constants, and runners may call other runners
		for _, f := range files {
			s.declarations(f)
		}
	}
	for _, f := range files {
		for _, d := range f.file.Decls {
			name := "init" // package-level variables
			if fn, ok := d.(*ast.FuncDecl); ok {
				name = fn.Name.Name
			}
			s.walk(f, name, d)
		}
	}
	return s
}

// declarations collects the constants and runners of a file.
func (s *scan) declarations(f *testFile) {
	for _, d := range f.file.Decls {
		switch d := d.(type) {
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				v, ok := spec.(*ast.ValueSpec)
				if !ok {
					continue
				}
				for i, name := range v.Names {
					if i < len(v.Values) {
						if n, ok := s.value(v.Values[i]); ok {
							s.durations[name.Name] = n
						}
					}
				}
			}
		case *ast.FuncDecl:
			if d.Body != nil && takesFunction(d) && s.startsBubble(d.Body) {
				s.runners[d.Name.Name] = true
			}
		}
	}
}

func takesFunction(d *ast.FuncDecl) bool {
	return slices.ContainsFunc(d.Type.Params.List, func(f *ast.Field) bool {
		_, ok := f.Type.(*ast.FuncType)
		return ok
	})
}

func (s *scan) startsBubble(n ast.Node) (starts bool) {
	ast.Inspect(n, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		starts = starts || ok && s.isRunner(call)
		return !starts
	})
	return starts
}

// isRunner reports whether a call runs its last argument in a bubble.
func (s *scan) isRunner(call *ast.CallExpr) bool {
	switch name := callee(call); name {
	case "synctest.Test", "simpair.Test":
		return true
	default:
		_, method, _ := strings.Cut(name, ".")
		return s.runners[name] || s.runners[method]
	}
}

// callee returns the called function as written, such as "f" or "pkg.F", or "" if it is not a name.
func callee(call *ast.CallExpr) string {
	switch fun := call.Fun.(type) {
	case *ast.Ident:
		return fun.Name
	case *ast.SelectorExpr:
		if x, ok := fun.X.(*ast.Ident); ok {
			return x.Name + "." + fun.Sel.Name
		}
		return "." + fun.Sel.Name
	}
	return ""
}

// walk records the references and waits of a function outside of bubbles.
func (s *scan) walk(f *testFile, function string, n ast.Node) {
	elapsed := map[string]bool{} // variables assigned from time.Since
	ast.Inspect(n, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.Ident:
			s.refs[function] = append(s.refs[function], n.Name)
		case *ast.AssignStmt:
			if len(n.Lhs) == 1 && len(n.Rhs) == 1 && usesSince(n.Rhs[0], nil) {
				if name, ok := n.Lhs[0].(*ast.Ident); ok {
					elapsed[name.Name] = true
				}
			}
		case *ast.CallExpr:
			if s.isRunner(n) {
				for _, arg := range n.Args[:max(0, len(n.Args)-1)] {
					s.walk(f, function, arg)
				}
				return false
			}
			if label := s.waits(n, elapsed); label != "" {
				s.hits[function] = append(s.hits[function], hit{f.name, finding{f.fset.Position(n.Pos()).Line, label}})
			}
		}
		return true
	})
}

// usesSince reports whether an expression contains time.Since, or one of the variables.
func usesSince(e ast.Expr, variables map[string]bool) (uses bool) {
	ast.Inspect(e, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.CallExpr:
			uses = uses || callee(n) == "time.Since"
		case *ast.Ident:
			uses = uses || variables[n.Name]
		}
		return !uses
	})
	return uses
}

// waits returns a description of a call's wait or time limit in real time, or "" if it has none.
func (s *scan) waits(call *ast.CallExpr, elapsed map[string]bool) string {
	name := callee(call)
	short := func(i int) bool {
		if i >= len(call.Args) {
			return false
		}
		d, known := s.value(call.Args[i])
		return known && d < shortest
	}
	pkg, function, _ := strings.Cut(name, ".")
	switch {
	case name == "time.Sleep", name == "time.After":
		return name
	case strings.HasPrefix(name, "context.WithTimeout") && short(1):
		return name + " below a minute"
	case pkg != "require" && pkg != "assert":
		return ""
	case strings.HasPrefix(function, "Eventually") && short(2):
		return name + " below a minute"
	case function == "Never":
		return name
	case strings.HasPrefix(function, "Less"), strings.HasPrefix(function, "InDelta"), function == "WithinDuration":
		if slices.ContainsFunc(call.Args, func(e ast.Expr) bool { return usesSince(e, elapsed) }) {
			return "upper bound on time.Since"
		}
	}
	return ""
}

// value evaluates a constant duration or number.
func (s *scan) value(e ast.Expr) (time.Duration, bool) {
	switch e := e.(type) {
	case *ast.BasicLit:
		n, err := strconv.ParseInt(strings.ReplaceAll(e.Value, "_", ""), 0, 64)
		return time.Duration(n), err == nil
	case *ast.ParenExpr:
		return s.value(e.X)
	case *ast.Ident:
		d, ok := s.durations[e.Name]
		return d, ok
	case *ast.SelectorExpr:
		units := map[string]time.Duration{
			"Nanosecond": 1, "Microsecond": time.Microsecond, "Millisecond": time.Millisecond, "Second": time.Second,
			"Minute": time.Minute, "Hour": time.Hour,
		}
		d, ok := units[e.Sel.Name]
		return d, ok
	case *ast.BinaryExpr:
		x, okX := s.value(e.X)
		y, okY := s.value(e.Y)
		switch {
		case !okX || !okY:
		case e.Op == token.MUL:
			return x * y, true
		case e.Op == token.ADD:
			return x + y, true
		case e.Op == token.QUO && y != 0:
			return x / y, true
		}
	}
	return 0, false
}

// findings adds the findings in functions that a test reaches outside of bubbles.
func (s *scan) findings(found map[string][]finding) {
	reached := map[string]bool{}
	var next []string
	for name := range s.refs {
		if slices.ContainsFunc([]string{"Test", "Fuzz", "Benchmark", "Example", "init"}, func(prefix string) bool {
			return strings.HasPrefix(name, prefix)
		}) {
			next = append(next, name)
		}
	}
	for len(next) > 0 {
		name := next[len(next)-1]
		next = next[:len(next)-1]
		if reached[name] {
			continue
		}
		reached[name] = true
		for _, h := range s.hits[name] {
			found[h.file] = append(found[h.file], h.finding)
		}
		for _, used := range s.refs[name] {
			if _, known := s.refs[used]; known && !reached[used] {
				next = append(next, used)
			}
		}
	}
}
