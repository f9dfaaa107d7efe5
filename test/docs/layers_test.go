// SPDX-License-Identifier: Apache-2.0

package docs

import (
	"fmt"
	"maps"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const module = "github.com/lockstep-mq/lockstep/"

// hook is a package that is empty in a release build. The drawing omits imports of it, because many packages import it.
const hook = "store/mutate"

// layers returns the top-level folders, from top to bottom. A package may import packages in the same layer or in a
// lower layer.
func layers() []string {
	return []string{
		"test", "deploy", "cmd", "test/harness", "server", "amqp", "client", "replication", "fleet", "failover", "store",
		"proto",
	}
}

// The drawing in ARCHITECTURE.md contains every package. Each arrow is an import, the arrows imply all imports, and no
// arrow points upwards. `go test ./test/docs -update` writes the drawing.
func TestLayerDiagramMatchesImports(t *testing.T) {
	imports := ownImports(t)
	order := layers()
	for from, targets := range imports {
		require.Contains(t, order, layerOf(from), "package %s is in no layer", from)
		for _, to := range targets {
			require.LessOrEqual(t, slices.Index(order, layerOf(from)), slices.Index(order, layerOf(to)),
				"%s imports %s, which is above it", from, to)
		}
	}
	generated(t, "ARCHITECTURE.md", "drawing", "```\n"+drawing(imports)+"```\n")
}

// ownImports returns the packages of this module, without its name, and their imports within the module.
func ownImports(t *testing.T) map[string][]string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "list", "-f", `{{.ImportPath}} {{join .Imports " "}}`, "./...")
	cmd.Dir = top
	out, err := cmd.Output()
	require.NoError(t, err)
	imports := map[string][]string{}
	for line := range strings.Lines(string(out)) {
		names := strings.Fields(line)
		own := []string{}
		for _, name := range names[1:] {
			if short, ok := strings.CutPrefix(name, module); ok && short != hook {
				own = append(own, short)
			}
		}
		imports[strings.TrimPrefix(names[0], module)] = own
	}
	require.Greater(t, len(imports), len(layers()))
	return imports
}

func layerOf(name string) string {
	if strings.HasPrefix(name, "test/harness") { // a separate layer, because cmd imports it
		return "test/harness"
	}
	first, _, _ := strings.Cut(name, "/")
	return first
}

// drawing draws each layer as a box. The layer's imports are at the top. Below are its packages, each with arrows to
// its direct imports within the layer that no other arrow implies.
func drawing(imports map[string][]string) string {
	var b strings.Builder
	for _, r := range layers() {
		names := slices.DeleteFunc(slices.Sorted(maps.Keys(imports)), func(n string) bool { return layerOf(n) != r })
		outside, inside := map[string][]string{}, map[string][]string{}
		for _, name := range names {
			for _, to := range imports[name] {
				if layerOf(to) != r {
					outside[layerOf(to)] = append(outside[layerOf(to)], to)
				} else {
					inside[name] = append(inside[name], to)
				}
			}
		}
		width := 0
		for _, name := range names {
			width = max(width, len(within(r, name)))
		}
		line(&b, fmt.Sprintf("┌─ %-*s ", width, r), targets(outside))
		for _, name := range downwards(names, inside) {
			var to []string
			for _, n := range reduced(name, inside) {
				to = append(to, within(r, n))
			}
			line(&b, fmt.Sprintf("│  %-*s ", width, within(r, name)), to)
		}
		b.WriteString("└─\n")
	}
	return b.String()
}

// within returns the name of a package in its layer. A package with the layer's name keeps that name.
func within(layer, name string) string { return strings.TrimPrefix(name, layer+"/") }

// targets returns the layers that a layer imports. If a layer imports only one or two packages of another layer,
// targets returns these packages instead.
func targets(outside map[string][]string) []string {
	var out []string
	for _, r := range layers() {
		switch to := slices.Compact(slices.Sorted(slices.Values(outside[r]))); {
		case len(to) <= 1, len(to) == 2 && !slices.Contains(to, r):
			out = append(out, to...)
		default:
			out = append(out, r)
		}
	}
	return out
}

// line writes a prefix and an arrow to all targets, and wraps long lines.
func line(b *strings.Builder, begin string, to []string) {
	const columns = 118
	if len(to) == 0 {
		b.WriteString(strings.TrimRight(begin, " ") + "\n")
		return
	}
	indent := "│" + strings.Repeat(" ", len([]rune(begin))-1)
	text := begin + "─▶"
	for _, name := range to {
		if len([]rune(text))+1+len(name) > columns {
			b.WriteString(text + "\n")
			text = indent + "  "
		}
		text += " " + name
	}
	b.WriteString(text + "\n")
}

// downwards returns the packages in topological order, importers first, and otherwise by name.
func downwards(names []string, inside map[string][]string) []string {
	depth := map[string]int{}
	var measure func(string) int
	measure = func(name string) int {
		if d, ok := depth[name]; ok {
			return d
		}
		d := 0
		for _, to := range inside[name] {
			d = max(d, measure(to)+1)
		}
		depth[name] = d
		return d
	}
	return slices.SortedStableFunc(slices.Values(names), func(a, b string) int { return measure(b) - measure(a) })
}

// reduced returns the imports of a package that are not implied by its other imports.
func reduced(name string, inside map[string][]string) []string {
	var leads func(from, to string) bool
	leads = func(from, to string) bool {
		return slices.ContainsFunc(inside[from], func(next string) bool { return next == to || leads(next, to) })
	}
	return slices.DeleteFunc(slices.Clone(inside[name]), func(to string) bool {
		return slices.ContainsFunc(inside[name], func(other string) bool { return other != to && leads(other, to) })
	})
}
