// SPDX-License-Identifier: Apache-2.0

package docs

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/proto/reason"
)

// TestErrorsReference compares the tables of docs/reference/errors.md with the options, comments and sections
// ("// Section: …") of errors.proto. The flag -update writes the tables.
func TestErrorsReference(t *testing.T) {
	source := readFile(t, top+"/proto/lockstep/v1/errors.proto")
	kinds, reasons, ok := strings.Cut(source, "\nenum ErrorReason {")
	require.True(t, ok)

	var b strings.Builder
	b.WriteString("## Kinds\n\n| Kind | Go | Python | Meaning |\n|---|---|---|---|\n")
	classes := pythonClasses(t)
	for _, v := range commented(kinds, "ERROR_KIND_") {
		golang := "`Err" + camel(v.name) + "`"
		if v.name == "RETRY" {
			golang = ""
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", v.name, golang, classes[v.name], v.comment)
	}
	for _, part := range strings.Split(reasons, "  // Section: ")[1:] {
		title, values, _ := strings.Cut(part, "\n")
		fmt.Fprintf(&b, "\n## %s\n\n| Reason | Code | Kind | Meaning |\n|---|---|---|---|\n", title)
		for _, v := range commented(values, "ERROR_REASON_") {
			r := reason.Parse(v.name)
			kind := strings.TrimPrefix(reason.Kind(r).String(), "ERROR_KIND_")
			code := regexp.MustCompile(`([a-z])([A-Z])`).ReplaceAllString(reason.Code(r).String(), "${1}_$2")
			code = strings.Replace(strings.ToUpper(code), "CANCELED", "CANCELLED", 1)
			fmt.Fprintf(&b, "| `%s` | %s | `%s` | %s |\n", v.name, code, kind, v.comment)
		}
	}
	text := b.String()
	for n := range pb.ErrorReason_name {
		if n != 0 {
			require.Contains(t, text, "\n| `"+reason.Name(pb.ErrorReason(n))+"` |", "reason is in no section of errors.proto")
		}
	}
	generated(t, "docs/reference/errors.md", "errors", text)
}

// protoValue is a value of an enum with its comment.
type protoValue struct{ name, comment string }

// commented returns the values of an enum with their comments, except the value 0.
func commented(source, prefix string) (list []protoValue) {
	pattern := regexp.MustCompile(`((?:  // .*\n)+)  ` + prefix + `(\w+) = [1-9]`)
	for _, m := range pattern.FindAllStringSubmatch(source, -1) {
		var words []string
		for line := range strings.Lines(m[1]) {
			words = append(words, strings.TrimPrefix(strings.TrimSpace(line), "// "))
		}
		list = append(list, protoValue{m[2], strings.ReplaceAll(strings.Join(words, " "), "|", "\\|")})
	}
	return list
}

// pythonClasses returns the exception class of each kind in the Python client.
func pythonClasses(t *testing.T) map[string]string {
	t.Helper()
	source := readFile(t, top+"/client/python/src/lockstep_mq/_reasons.py")
	out := make(map[string]string)
	for _, m := range regexp.MustCompile(`ERROR_KIND_(\w+): errors\.(\w+),`).FindAllStringSubmatch(source, -1) {
		out[m[1]] = "`" + m[2] + "`"
	}
	return out
}

// camel converts UPPER_SNAKE to UpperCamel.
func camel(name string) string {
	var b strings.Builder
	for word := range strings.SplitSeq(name, "_") {
		b.WriteString(word[:1] + strings.ToLower(word[1:]))
	}
	return b.String()
}
