// SPDX-License-Identifier: Apache-2.0

package docs

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"github.com/lockstep-mq/lockstep/failover"
	"github.com/lockstep-mq/lockstep/server/observe/conditions"
	"github.com/lockstep-mq/lockstep/server/observe/metrics"
)

const (
	rulesFile     = "deploy/prometheus/lockstep.rules.yaml"
	dashboardFile = "deploy/grafana/lockstep.json"
	runbookURL    = "https://github.com/lockstep-mq/lockstep/blob/main/docs/how-to/"
)

// alertRule is a rule in deploy/prometheus.
type alertRule struct {
	Alert       string            `yaml:"alert"`
	Expr        string            `yaml:"expr"`
	For         string            `yaml:"for"`
	Labels      map[string]string `yaml:"labels"`
	Annotations map[string]string `yaml:"annotations"`
}

func alertRules(t *testing.T) []alertRule {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(top, rulesFile))
	require.NoError(t, err)
	var file struct {
		Groups []struct {
			Rules []alertRule `yaml:"rules"`
		} `yaml:"groups"`
	}
	require.NoError(t, yaml.Unmarshal(raw, &file))
	var out []alertRule
	for _, g := range file.Groups {
		out = append(out, g.Rules...)
	}
	require.NotEmpty(t, out)
	return out
}

// dashboardQueries returns the queries of the dashboard by location.
func dashboardQueries(t *testing.T) map[string]string {
	t.Helper()
	type target struct {
		RefID string `json:"refId"`
		Expr  string `json:"expr"`
	}
	var d struct {
		Panels []struct {
			Title   string   `json:"title"`
			Type    string   `json:"type"`
			Targets []target `json:"targets"`
		} `json:"panels"`
		Templating struct {
			List []struct {
				Name       string `json:"name"`
				Type       string `json:"type"`
				Definition string `json:"definition"`
			} `json:"list"`
		} `json:"templating"`
		Annotations struct {
			List []target `json:"list"`
		} `json:"annotations"`
	}
	raw, err := os.ReadFile(filepath.Join(top, dashboardFile))
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(raw, &d))
	out := make(map[string]string)
	row, variables := "", []string{}
	for _, p := range d.Panels {
		if p.Type == "row" {
			row = p.Title
			continue
		}
		require.NotEmpty(t, p.Targets, "panel %s has no query", p.Title)
		for _, q := range p.Targets {
			at := fmt.Sprintf("%s / %s / %s", row, p.Title, q.RefID)
			require.NotContains(t, out, at, "two panels with the same name")
			out[at] = q.Expr
		}
	}
	for i, a := range d.Annotations.List {
		out[fmt.Sprintf("annotation %d", i)] = a.Expr
	}
	for _, v := range d.Templating.List {
		if v.Type == "query" {
			variables = append(variables, v.Name)
			inner := strings.TrimSuffix(strings.TrimPrefix(v.Definition, "label_values("), ")")
			at := strings.LastIndex(inner, ",")
			require.Positive(t, at, v.Definition)
			out["variable "+v.Name] = fmt.Sprintf("count by (%s) (%s)", strings.TrimSpace(inner[at+1:]), inner[:at])
		}
	}
	require.Equal(t, []string{"job", "instance", "queue"}, variables)
	return out
}

// exported returns the metrics that a node exports, with their labels.
func exported(t *testing.T) map[string][]string {
	t.Helper()
	out := map[string][]string{"up": nil}
	for _, m := range metrics.All() {
		if m.Type == metrics.Histogram {
			out[m.Name+"_bucket"] = append(slices.Clone(m.Labels), "le")
			out[m.Name+"_sum"], out[m.Name+"_count"] = m.Labels, m.Labels
		}
		out[m.Name] = m.Labels
	}
	r := prometheus.NewRegistry()
	r.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	families, err := r.Gather()
	require.NoError(t, err)
	for _, f := range families {
		out[f.GetName()] = nil
	}
	return out
}

// Parts of a query. Without strings, ranges, selectors and groupings, a query consists of functions, operators, numbers
// and metric names.
var (
	quoted    = regexp.MustCompile(`"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'`)
	ranged    = regexp.MustCompile(`\[[^\]]*\]`)
	selector  = regexp.MustCompile(`([a-zA-Z_:][a-zA-Z0-9_:]*)\s*\{([^}]*)\}`)
	matcher   = regexp.MustCompile(`([a-zA-Z_]\w*)\s*(=~|!~|!=|=)`)
	groupings = regexp.MustCompile(`\b(by|without|on|ignoring|group_left|group_right)\s*\(([^)]*)\)`)
	word      = regexp.MustCompile(`[a-zA-Z_:][a-zA-Z0-9_:]*`)
	functions = regexp.MustCompile(`\b[a-zA-Z_]\w*\s*\(`)
	operators = regexp.MustCompile(`\b(and|or|unless|bool|offset)\b`)
)

// everywhere are the labels that Prometheus adds to every series. exported_job replaces the node's label job.
var everywhere = []string{"job", "instance", "exported_job"}

// checkQuery compares the metrics and labels in a query with those that a node exports.
func checkQuery(known map[string][]string, query string) error {
	q := ranged.ReplaceAllString(quoted.ReplaceAllString(query, `""`), "")
	var labels []string
	for _, s := range selector.FindAllStringSubmatch(q, -1) {
		for _, m := range matcher.FindAllStringSubmatch(s[2], -1) {
			if !slices.Contains(everywhere, m[1]) && !slices.Contains(known[s[1]], m[1]) {
				return fmt.Errorf("%s has no label %s", s[1], m[1])
			}
		}
	}
	q = selector.ReplaceAllString(q, "$1")
	for _, g := range groupings.FindAllStringSubmatch(q, -1) {
		labels = append(labels, word.FindAllString(g[2], -1)...)
	}
	q = operators.ReplaceAllString(functions.ReplaceAllString(groupings.ReplaceAllString(q, " "), "("), " ")
	names := word.FindAllString(q, -1)
	if len(names) == 0 {
		return fmt.Errorf("query contains no metric")
	}
	for _, n := range names {
		if _, ok := known[n]; !ok {
			return fmt.Errorf("%s is not exported", n)
		}
	}
	for _, l := range labels {
		if !slices.Contains(everywhere, l) &&
			!slices.ContainsFunc(names, func(n string) bool { return slices.Contains(known[n], l) }) {
			return fmt.Errorf("none of %v has a label %s", names, l)
		}
	}
	return nil
}

// checkQuery rejects unknown metrics and labels.
func TestCheckQuery(t *testing.T) {
	known := exported(t)
	for query, want := range map[string]string{
		`up{job="x"} == 0`: "",
		`histogram_quantile(0.99, sum by (job, le) (rate(lockstep_commit_duration_seconds_bucket[5m])))`: "",
		`time() - (lockstep_start_time_seconds{job="$job"} > 0)`:                                         "",
		`lockstep_no_such_thing > 0`:                                         "lockstep_no_such_thing",
		`rate(lockstep_commit_duration_seconds_total[5m])`:                   "not exported",
		`lockstep_queue_messages{subscription="x"}`:                          "label subscription",
		`sum by (queue) (lockstep_messages)`:                                 "label queue",
		`lockstep_term and on (job, condition) lockstep_term`:                "label condition",
		`sum without (instance) (lockstep_messages) or lockstep_mesages > 0`: "lockstep_mesages is",
	} {
		err := checkQuery(known, query)
		if want == "" {
			require.NoError(t, err, query)
			continue
		}
		require.Error(t, err)
		require.Contains(t, err.Error(), want, query)
	}
}

// Every metric, label, condition and role used by the alert rules exists.
func TestAlertsUseExistingMetrics(t *testing.T) {
	known := exported(t)
	for _, r := range alertRules(t) {
		require.NoError(t, checkQuery(known, r.Expr), r.Alert)
		for _, named := range regexp.MustCompile(`condition="([^"]*)"`).FindAllStringSubmatch(r.Expr, -1) {
			require.NotNil(t, conditions.Find(conditions.Kind(named[1])), "%s: condition %s", r.Alert, named[1])
		}
		checkRoles(t, r.Alert, r.Expr)
	}
}

func checkRoles(t *testing.T, location, query string) {
	t.Helper()
	for _, named := range regexp.MustCompile(`role=~?"([^"]*)"`).FindAllStringSubmatch(query, -1) {
		for role := range strings.SplitSeq(named[1], "|") {
			found := false
			for r := failover.RoleRecovering; r <= failover.RoleFenced; r++ {
				found = found || r.String() == role
			}
			require.True(t, found, "%s: role %s does not exist", location, role)
		}
	}
}

// Every condition that requires an action has an alert, which selects it by severity or by name.
func TestEveryConditionHasAnAlert(t *testing.T) {
	rules := alertRules(t)
	for _, d := range conditions.All() {
		covered := slices.ContainsFunc(rules, func(r alertRule) bool {
			return strings.Contains(r.Expr, fmt.Sprintf("lockstep_condition{severity=%q}", d.Severity)) ||
				strings.Contains(r.Expr, fmt.Sprintf("lockstep_condition{condition=%q}", d.Kind))
		})
		require.True(t, covered || d.Severity == conditions.Info, "%s has no alert", d.Kind)
	}
}

// Each alert links to its section in docs/how-to/respond-to-alerts.md, or to that of its condition. The section
// contains the severity and a command. Each section belongs to an alert.
func TestEveryAlertHasAResponse(t *testing.T) {
	raw, err := os.ReadFile(filepath.Join(top, "docs", "how-to", "respond-to-alerts.md"))
	require.NoError(t, err)
	sections := make(map[string]string)
	for part := range strings.SplitSeq(string(raw), "\n## ") {
		title, body, _ := strings.Cut(part, "\n")
		if strings.HasPrefix(title, "Lockstep") {
			sections[title] = body
		}
	}
	for _, r := range alertRules(t) {
		severity := r.Labels["severity"]
		require.Contains(t, []string{"critical", "warning"}, severity, r.Alert)
		require.NotEmpty(t, r.Annotations["summary"], r.Alert)
		require.NotEmpty(t, r.Annotations["description"], r.Alert)
		anchor, ok := strings.CutPrefix(r.Annotations["runbook_url"], runbookURL)
		require.True(t, ok, "%s: runbook_url is %q", r.Alert, r.Annotations["runbook_url"])
		require.Contains(t, []string{
			"respond-to-alerts.md#" + strings.ToLower(r.Alert), "respond-to-conditions.md#{{ $labels.condition }}",
		}, anchor, r.Alert)
		body, ok := sections[r.Alert]
		require.True(t, ok, "respond-to-alerts.md has no section %s", r.Alert)
		delete(sections, r.Alert)
		for _, want := range []string{"\nSeverity: " + severity + ".\n", "\n```sh"} {
			require.Contains(t, body, want, "section %s of respond-to-alerts.md", r.Alert)
		}
	}
	require.Empty(t, sections, "sections of respond-to-alerts.md without an alert")
}

// The promtool unit tests next to the rules cover each alert. test/alerts/run.sh runs them.
func TestEveryAlertIsTested(t *testing.T) {
	var all strings.Builder
	for _, name := range []string{"lockstep.rules.test.yaml", "lockstep.rules.days.test.yaml"} {
		raw, err := os.ReadFile(filepath.Join(top, "deploy", "prometheus", name))
		require.NoError(t, err)
		all.Write(raw)
	}
	for _, r := range alertRules(t) {
		tested := strings.Contains(all.String(), "alertname: "+r.Alert+"\n") ||
			strings.Contains(all.String(), fmt.Sprintf("alertname=%q", r.Alert))
		require.True(t, tested, "no test covers %s", r.Alert)
	}
}

// Every metric and label in the dashboard's queries exists. If LOCKSTEP_EXPRESSIONS is set, the test writes the queries
// to that file as rules, so that promtool can check their syntax.
func TestDashboardUsesExistingMetrics(t *testing.T) {
	known, queries := exported(t), dashboardQueries(t)
	rows := make(map[string]bool)
	for at, q := range queries {
		require.NoError(t, checkQuery(known, q), "%s: %s", at, q)
		checkRoles(t, at, q)
		row, _, _ := strings.Cut(at, " / ")
		rows[row] = true
	}
	for _, row := range []string{
		"Pair", "Clients", "Queues", "Replication", "Store", "Maintenance", "Process",
	} {
		require.True(t, rows[row], "no panel in row %s", row)
	}
	if name := os.Getenv("LOCKSTEP_EXPRESSIONS"); name != "" {
		require.NoError(t, os.WriteFile(name, queriesAsRules(queries), 0o600))
	}
}

// queriesAsRules converts queries to recording rules.
func queriesAsRules(queries map[string]string) []byte {
	type rule struct {
		Record string `json:"record"`
		Expr   string `json:"expr"`
	}
	var rules []rule
	for at, q := range queries {
		q = strings.ReplaceAll(strings.ReplaceAll(q, "$__rate_interval", "1m"), "$", "")
		name := regexp.MustCompile(`\W+`).ReplaceAllString(strings.ToLower(at), "_")
		rules = append(rules, rule{"dashboard:" + name, q})
	}
	slices.SortFunc(rules, func(a, b rule) int { return cmp.Compare(a.Record, b.Record) })
	file := map[string]any{"groups": []any{map[string]any{"name": "dashboard", "rules": rules}}}
	out, err := json.Marshal(file) // JSON is YAML
	if err != nil {
		panic(err)
	}
	return out
}
