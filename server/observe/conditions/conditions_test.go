// SPDX-License-Identifier: Apache-2.0

package conditions_test

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/server/observe/conditions"
)

// A condition is raised once, when it has existed for the time that its definition requires. It is cleared when
// it is no longer reported.
func TestBookRaisesAndClears(t *testing.T) {
	var changes []string
	b := conditions.NewBook(func(c conditions.Condition, raised bool) {
		changes = append(changes, fmt.Sprintf("%s %s %v", c.Definition.Kind, c.Details, raised))
	})
	start := time.Unix(1_700_000_000, 0)
	at := func(s int) time.Time { return start.Add(time.Duration(s) * time.Second) }
	absent := conditions.Report{Kind: conditions.StandbyAbsent, Details: "b"}
	after := int(conditions.Find(conditions.StandbyAbsent).After / time.Second)
	require.Positive(t, after, "requires a kind with a hold time")
	paused := conditions.Report{Kind: conditions.Paused}

	b.Set(at(0), []conditions.Report{absent, paused, {Kind: "no-such-kind"}})
	require.Equal(t, []string{"paused  true"}, changes)
	b.Set(at(after-1), []conditions.Report{absent, paused})
	require.Len(t, b.Now(), 1)
	b.Set(at(after), []conditions.Report{absent, absent, paused})
	require.Equal(t, []string{"paused  true", "standby-absent b true"}, changes)
	now := b.Now()
	require.Len(t, now, 2)
	require.Equal(t, conditions.StandbyAbsent, now[0].Definition.Kind, "most severe first")
	require.Equal(t, at(0), now[0].Since, "start of the state, not of the condition")
	require.Equal(t, conditions.Warning, conditions.Worst(now))

	b.Set(at(after+1), nil)
	require.Empty(t, b.Now())
	require.Len(t, changes, 4)
	// An interruption restarts the required time. A condition that was not raised is not cleared.
	b.Set(at(after+2), []conditions.Report{absent})
	b.Set(at(after+3), nil)
	b.Set(at(2*after+2), []conditions.Report{absent})
	require.Empty(t, b.Now())
	require.Len(t, changes, 4)
}

// Conditions that the other node reports retain their start time. The same kind of condition is raised separately
// for each node.
func TestBookOfTwoNodes(t *testing.T) {
	b := conditions.NewBook(nil)
	now := time.Unix(1_700_000_000, 0)
	a, c := conditions.Node{ID: "1", Name: "a"}, conditions.Node{ID: "2", Name: "b"}
	b.Set(now, []conditions.Report{
		{Kind: conditions.DiskLow, Node: a, Since: now.Add(-time.Hour)},
		{Kind: conditions.DiskLow, Node: c, Since: now.Add(-2 * time.Hour)},
	})
	all := b.Now()
	require.Len(t, all, 2)
	require.Equal(t, "b", all[0].Node.Name)
	require.Equal(t, now.Add(-2*time.Hour), all[0].Since)
}

// Each condition of the table has a kebab-case name, a severity, a scope, a cause and an action.
func TestTable(t *testing.T) {
	kebab := regexp.MustCompile(`^[a-z]+(-[a-z]+)*$`)
	seen := make(map[string]bool)
	for _, d := range conditions.All() {
		name := string(d.Kind)
		require.Regexp(t, kebab, name)
		require.False(t, seen[name], "%s is in the table twice", name)
		seen[name] = true
		require.Contains(t, []conditions.Severity{conditions.Info, conditions.Warning, conditions.Critical}, d.Severity,
			name)
		require.Contains(t, []conditions.Scope{conditions.OfNode, conditions.OfPair}, d.Scope, name)
		for _, text := range []string{d.Cause, d.Action} {
			require.Greater(t, len(text), 20, "%s: %q", name, text)
			require.True(t, strings.HasSuffix(text, "."), "%s: %q", name, text)
		}
		require.Equal(t, d.Kind, conditions.Find(d.Kind).Kind)
	}
	require.Nil(t, conditions.Find("no-such-kind"))
}

// docs/how-to/respond-to-conditions.md has a section for each kind, with its severity and a command.
func TestConditionsAreDocumented(t *testing.T) {
	const page = "docs/how-to/respond-to-conditions.md"
	raw, err := os.ReadFile("../../../" + page)
	require.NoError(t, err)
	sections := make(map[string]string)
	for part := range strings.SplitSeq(string(raw), "\n## ") {
		title, body, _ := strings.Cut(part, "\n")
		if name, ok := strings.CutPrefix(title, "`"); ok {
			sections[strings.TrimSuffix(name, "`")] = body
		}
	}
	for _, d := range conditions.All() {
		body, ok := sections[string(d.Kind)]
		require.True(t, ok, "%s has no section `%s`", page, d.Kind)
		delete(sections, string(d.Kind))
		require.Contains(t, body, "\nSeverity: "+d.Severity.String()+".\n", "section %s of %s", d.Kind, page)
		require.Contains(t, body, "\n```sh", "section %s of %s has no command", d.Kind, page)
	}
	require.Empty(t, sections, "sections of %s without a condition", page)
}

// Each kind is reported by a rule, or by package failover.
func TestEachKindHasARule(t *testing.T) {
	read := func(name string) string {
		raw, err := os.ReadFile(name)
		require.NoError(t, err)
		return string(raw)
	}
	rules := read("rules.go") + read("rules_work.go") + read("failover.go") + read("rules_site.go") +
		read("rules_fleet.go") +
		read("../../../failover/coordinator.go")
	names := regexp.MustCompile(`(?m)^\t(\w+)\s+Kind = "(.+)"$`).FindAllStringSubmatch(read("kinds.go"), -1)
	require.Len(t, names, len(conditions.All()))
	for _, m := range names {
		require.Regexp(t, `\b`+m[1]+`\b|"`+m[2]+`"`, rules)
	}
}

// A state that occurs during a normal restart is not reported. A state that persists is reported with its start
// time.
func TestShortStatesAreNotReported(t *testing.T) {
	for _, k := range []conditions.Kind{conditions.OneCopyOnly, conditions.MinInSyncNotMet} {
		changes := 0
		b := conditions.NewBook(func(conditions.Condition, bool) { changes++ })
		start := time.Unix(1_700_000_000, 0)
		report := []conditions.Report{{Kind: k}}
		for ms := range 1500 {
			b.Set(start.Add(time.Duration(ms)*time.Millisecond), report)
		}
		b.Set(start.Add(1500*time.Millisecond), nil)
		require.Empty(t, b.Now(), k)
		require.Zero(t, changes, k)

		start = start.Add(time.Minute)
		b.Set(start, report)
		b.Set(start.Add(2*time.Second), report)
		require.Len(t, b.Now(), 1, k)
		require.Equal(t, start, b.Now()[0].Since)
	}
}

// The announcement of a stopped node expires before that node could be reported as a foreign node.
func TestForeignNodeHoldTime(t *testing.T) {
	const lease = 3*time.Second + time.Second // lease of the coordinators, including rounding
	require.Greater(t, conditions.Find(conditions.ForeignNode).After, lease)
}
