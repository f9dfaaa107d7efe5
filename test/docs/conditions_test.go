// SPDX-License-Identifier: Apache-2.0

package docs

import (
	"fmt"
	"strings"
	"testing"

	"github.com/lockstep-mq/lockstep/server/observe/conditions"
)

// TestConditionsReference compares the table of docs/reference/conditions.md with server/observe/conditions. The flag
// -update writes the table.
func TestConditionsReference(t *testing.T) {
	var b strings.Builder
	b.WriteString("| Condition | Severity | Scope | Hold time | Cause | Action |\n|---|---|---|---|---|---|\n")
	for _, d := range conditions.All() {
		scope := "node"
		if d.Scope == conditions.OfPair {
			scope = "pair"
		}
		hold := ""
		if d.After > 0 {
			hold = strings.Replace(d.After.String(), "m0s", "m", 1)
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s | %s | [respond](../how-to/respond-to-conditions.md#%s) |\n", d.Kind,
			d.Severity, scope, hold, strings.ReplaceAll(d.Cause, "|", "\\|"), d.Kind)
	}
	generated(t, "docs/reference/conditions.md", "conditions", b.String())
}
