// SPDX-License-Identifier: Apache-2.0

package console

import (
	"encoding/json"
	"errors"
	"fmt"
	"html/template"
	"math"
	"net/url"
	"reflect"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/store/units"
)

func functions() template.FuncMap {
	return template.FuncMap{
		"bytes": formatBytes, "number": formatNumber, "ago": ago, "time": clockTime, "took": durationText, "percent": percent,
		"role": roleOf, "severity": severityOf, "json": asJSON, "dialog": dialogLink, "link": withQuery, "dict": dict,
		"short": short, "plural": plural, "outcome": outcome, "rights": rightsOf, "rightNames": rightNames,
		"runbook": func() string { return runbook },
		"chosen":  chosen, "list": func(items ...any) []any { return items },
	}
}

func toFloat(v any) float64 {
	switch n := reflect.ValueOf(v); {
	case n.CanInt():
		return float64(n.Int())
	case n.CanUint():
		return float64(n.Uint())
	case n.CanFloat():
		return n.Float()
	}
	return 0
}

func formatBytes(v any) string { return units.Bytes(int64(math.Round(toFloat(v)))) }

func formatNumber(v any) string {
	switch n := v.(type) {
	case uint64:
		return units.Count(n)
	case float64:
		return units.Rate(n)
	}
	return units.Count(int64(toFloat(v)))
}

// percent returns part as a percentage of complete: an integer from 0 to 100.
func percent(part, complete any) int {
	w := toFloat(complete)
	if w <= 0 {
		return 0
	}
	return int(math.Round(min(1, max(0, toFloat(part)/w)) * 100))
}

// timeText converts a protobuf or Go time. It returns the zero time if no time is set.
func timeText(v any) time.Time {
	switch t := v.(type) {
	case *timestamppb.Timestamp:
		if t != nil {
			return t.AsTime()
		}
	case time.Time:
		return t
	}
	return time.Time{}
}

func clockTime(v any) string {
	t := timeText(v)
	if t.IsZero() {
		return "–"
	}
	return t.UTC().Format("2006-01-02T15:04:05Z")
}

func ago(v any) string {
	t := timeText(v)
	if t.IsZero() {
		return "–"
	}
	d := time.Since(t)
	if d < 0 {
		return "in " + units.Age(-d)
	}
	return units.Age(d) + " ago"
}

func durationText(v any) string {
	switch d := v.(type) {
	case *durationpb.Duration:
		if d != nil {
			return units.Age(d.AsDuration())
		}
	case time.Duration:
		return units.Age(d)
	}
	return "–"
}

// label is a word with the CSS class that sets its color.
type label struct{ Word, Class string }

func roleOf(r pb.Role) label {
	word := strings.ToLower(strings.ReplaceAll(strings.TrimPrefix(r.String(), "ROLE_"), "_", " "))
	switch r {
	case pb.Role_ROLE_ACTIVE:
		return label{word, "good"}
	case pb.Role_ROLE_STANDBY:
		return label{word, "info"}
	case pb.Role_ROLE_BLOCKED:
		return label{word, "bad"}
	case pb.Role_ROLE_UNSPECIFIED:
		return label{"unknown", "bad"}
	default:
		return label{word, "warn"}
	}
}

func severityOf(s pb.Severity) label {
	switch s {
	case pb.Severity_SEVERITY_CRITICAL:
		return label{"critical", "bad"}
	case pb.Severity_SEVERITY_WARNING:
		return label{"warning", "warn"}
	default:
		return label{"info", "info"}
	}
}

func asJSON(v any) (string, error) {
	raw, err := json.Marshal(v)
	if err != nil {
		return "", fmt.Errorf("json: %w", err)
	}
	return string(raw), nil
}

// dialogLink returns the attributes of a link or button that opens the dialog of an action at address. query
// contains alternating names and values for the query of the address.
func dialogLink(address string, query ...string) (template.HTMLAttr, error) {
	full, err := withQuery(address, query...)
	if err != nil {
		return "", err
	}
	to := template.HTMLEscapeString(full)
	//nolint:gosec // escaped above
	return template.HTMLAttr(`href="` + to + `" hx-get="` + to + `" hx-target="#dialog" hx-swap="innerHTML"`), nil
}

func withQuery(address string, query ...string) (string, error) {
	if len(query)%2 != 0 {
		return "", errors.New("missing value for a name")
	}
	if len(query) == 0 {
		return address, nil
	}
	values := url.Values{}
	for i := 0; i < len(query); i += 2 {
		values.Set(query[i], query[i+1]) //nolint:gosec // even number of elements
	}
	return address + "?" + values.Encode(), nil
}

func dict(pairs ...any) (map[string]any, error) {
	if len(pairs)%2 != 0 {
		return nil, errors.New("missing value for a name")
	}
	m := make(map[string]any, len(pairs)/2)
	for i := 0; i < len(pairs); i += 2 {
		name, ok := pairs[i].(string)
		if !ok {
			return nil, errors.New("name is not a string")
		}
		m[name] = pairs[i+1]
	}
	return m, nil
}

func plural(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return units.Count(n) + " " + thing + "s"
}

func short(id string) string {
	const n = 8
	if len(id) > n {
		return id[:n]
	}
	return id
}
