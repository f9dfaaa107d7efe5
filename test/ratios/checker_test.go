// SPDX-License-Identifier: Apache-2.0

package ratios

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// good is the valid document that the cases of TestParseReportsErrors modify.
const good = `{
  "measured": "today",
  "runs": [{"name": "a", "command": "store --rounds 1"}, {"name": "b", "command": "store --rounds 2", "peer": "p"}],
  "ratios": [
    {"name": "one", "of": {"run": "a", "line": {"phase": "write"}, "field": "rate"},
     "to": {"run": "b", "line": {"phase": "read"}, "field": "deep.rate"},
     "lowest": 0.5, "highest": 1.5, "measured": [0.5, 1.5],
     "figure": "it is **0.88** here", "documented": 0.88}
  ]
}`

func TestParseReportsErrors(t *testing.T) {
	e, err := parse([]byte(good))
	require.NoError(t, err)
	require.Len(t, e.Ratios[0].values(), 2)
	for _, c := range []struct{ from, to, want string }{
		{`"today"`, `""`, "when and"},
		{`"lowest"`, `"least"`, "unknown field"},
		{`"lowest": 0.5`, `"lowest": 1.5`, "a range"},
		{`"lowest": 0.5`, `"lowest": 0`, "a range"},
		{`[0.5, 1.5]`, `[1]`, "two measurements"},
		{`[0.5, 1.5]`, `[0.5, 1.6]`, "value 1.6"},
		{`[0.5, 1.5]`, `[0.4, 1.5]`, "value 0.4"},
		{`{"run": "a", "line"`, `{"run": "c", "line"`, `run "c"`},
		{`{"run": "a", "line"`, `{"run": "b", "line"`, `run "a"`},
		{`"documented": 0.88`, `"documented": 1.88`, "value 1.88"},
		{`"documented": 0.88`, `"documented": 0.89`, "contain 0.89"},
		{`, "documented": 0.88`, ``, "value 0"},
		{`"name": "b"`, `"name": "a"`, `"a" is duplicate`},
		{`"name": "one"`, `"name": ""`, "is empty"},
		{`{"phase": "write"}`, `{}`, "line and"},
		{`"phase": "write"`, `"phase": []`, "phase"},
		{`"deep.rate"`, `""`, "line and"},
		{`store --rounds 2`, `store --output json`, "valid command"},
		{`"ratios": [`, `"ratios": [], "x": [`, "unknown field"},
	} {
		text := strings.Replace(good, c.from, c.to, 1)
		require.NotEqual(t, good, text)
		_, err := parse([]byte(text))
		require.Error(t, err)
		require.Contains(t, err.Error(), c.want, "%s for %s", c.to, c.from)
	}
	_, err = parse([]byte(`{"measured": "today"}`))
	require.Error(t, err)
	require.Contains(t, err.Error(), "no ratios")
	_, list, found := strings.Cut(good, `"ratios": [`)
	require.True(t, found)
	one, _, found := strings.Cut(list, "\n  ]")
	require.True(t, found)
	_, err = parse([]byte(strings.Replace(good, one, one+","+one, 1)))
	require.Error(t, err)
	require.Contains(t, err.Error(), `"one"`)
	require.Contains(t, err.Error(), "duplicate")
}

// A ratio is the quotient of two values. A missing value is an error.
func TestQuotient(t *testing.T) {
	r := ratio{
		Of: value{Run: "a", Line: map[string]any{"phase": "write", "median": true}, Field: "rate"},
		To: &value{Run: "b", Line: map[string]any{"size": 512.0, "median": false}, Field: "deep.1.rate"},
	}
	const (
		a = `{"phase":"write","rate":7} {"phase":"write","median":true,"rate":3} {"phase":"read","median":true}`
		b = `{"size":512,"deep":[{},{"rate":4}]} {"size":512,"median":true,"deep":[{},{"rate":5}]}
			{"size":15000,"deep":[{},{"rate":6}]}`
	)
	quotient := func(a, b string) (float64, error) {
		of, err := decode([]byte(a))
		require.NoError(t, err)
		to, err := decode([]byte(b))
		require.NoError(t, err)
		return r.quotient(map[string][]line{"a": of, "b": to}, nil)
	}
	got, err := quotient(a, b)
	require.NoError(t, err)
	require.InDelta(t, 0.75, got, 1e-9)
	for _, c := range []struct{ a, b, want string }{
		{"", b, "0 of "},
		{a + a, b, "2 of "},
		{a, strings.ReplaceAll(b, "512", "513"), "0 of "},
		{a, strings.Replace(b, "4", "0", 1), "above 0"},
		{a, strings.Replace(b, "4", "-4", 1), "above 0"},
		{a, strings.Replace(b, "4", `"4"`, 1), "above 0"},
		{a, strings.Replace(b, "{},", "", 1), "above 0"},
		{a, strings.Replace(b, "deep", "flat", 1), "above 0"},
	} {
		_, err := quotient(c.a, c.b)
		require.Error(t, err)
		require.Contains(t, err.Error(), c.want, "%s / %s", c.a, c.b)
	}
	_, err = r.quotient(nil, map[string]error{"b": errSkipped})
	require.Error(t, err)
	_, err = decode([]byte("Usage:"))
	require.Error(t, err)
	r.To = nil
	got, err = quotient(a, "")
	require.NoError(t, err)
	require.InDelta(t, 3, got, 1e-9)
}

// fakeVariable makes TestFake act as the measured program. Its value is the prefix of the files that count calls.
const fakeVariable = "RATIOS_FAKE"

// Each round executes every command, and the verdict is based on the median of the rounds. A ratio that is out of
// range, or has no measurement, is a failure.
func TestMeasure(t *testing.T) {
	t.Setenv(fakeVariable, t.TempDir()+"/calls")
	value := func(run string) *value {
		return &value{Run: run, Line: map[string]any{"phase": "fake"}, Field: "rate"}
	}
	e := &expectations{Runs: []run{
		{Name: "a", Command: "rates 10 100 30"},
		{Name: "b", Command: "rates 10 10 10"},
		{Name: "late", Command: "rates 10 10 fail"},
		{Name: "peer", Command: "rates 10 10 10", Peer: "missing"},
	}, Ratios: []ratio{
		{Name: "in", Of: *value("a"), To: value("b"), Lowest: 2.9, Highest: 3},
		{Name: "low", Of: *value("a"), To: value("b"), Lowest: 3.1, Highest: 4},
		{Name: "high", Of: *value("a"), To: value("b"), Lowest: 1, Highest: 2.9},
		{Name: "late", Of: *value("late"), To: value("b"), Lowest: 0.1, Highest: 10},
		{Name: "peer", Of: *value("peer"), To: value("b"), Lowest: 0.1, Highest: 10},
	}}
	m := measurer{program: []string{os.Args[0], "-test.run=TestFake$"}, peers: t.TempDir(), keep: t.TempDir(), log: t.Logf}
	all := m.measure(t.Context(), e, 3)
	verdicts := map[string]verdict{}
	for _, o := range all {
		verdicts[o.ratio.Name] = o.verdict
	}
	require.Equal(t, map[string]verdict{
		"in": holds, "low": tooLow, "high": tooHigh, "late": failed, "peer": skipped,
	}, verdicts)
	require.Equal(t, []float64{1, 10, 3}, all[0].rounds)
	require.InDelta(t, 3, all[0].measured, 1e-9)
	text, failures := table(all)
	require.Equal(t, 3, failures, text)
	require.Contains(t, text, "not installed")
	require.Contains(t, text, "simulated failure")
	kept, err := os.ReadDir(m.keep)
	require.NoError(t, err)
	require.Len(t, kept, 9, "output of three commands in three rounds")

	e.only(regexp.MustCompile("^(in|peer)$"))
	require.Len(t, e.Runs, 3, "commands used by the two ratios: %v", e.Runs)
	_, failures = table(m.measure(t.Context(), e, 1))
	require.Equal(t, 1, failures, "the ratio 10/10 of the only round is too low")
}

// TestFake is not a test, but the program that TestMeasure runs. Its arguments are `rates R1 R2 R3 --output json`.
// Call n with the same rates prints the rate with the index n.
func TestFake(t *testing.T) {
	calls := os.Getenv(fakeVariable)
	args := os.Args[1:]
	if calls == "" || len(args) < 2 || args[1] != "rates" {
		t.Skip("TestMeasure runs this")
	}
	rates := args[2 : len(args)-2]
	file := calls + strings.Join(rates, "-")
	before, _ := os.ReadFile(file) // does not exist before the first call
	if err := os.WriteFile(file, append(before, '.'), 0o600); err != nil {
		panic(err)
	}
	rate := rates[len(before)%len(rates)]
	if rate == "fail" {
		fmt.Fprintln(os.Stderr, "simulated failure")
		os.Exit(1)
	}
	fmt.Printf("{\"phase\": \"fake\", \"rate\": %s}\n{\"phase\": \"other\", \"rate\": 1}\n", rate)
	os.Exit(0)
}
