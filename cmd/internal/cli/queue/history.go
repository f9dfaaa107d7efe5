// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"context"
	"time"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/client/admin"
	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	"github.com/lockstep-mq/lockstep/cmd/internal/output"
	"github.com/lockstep-mq/lockstep/store/units"
)

type historyState struct {
	Queue           string       `json:"queue,omitempty"`
	IntervalSeconds float64      `json:"interval_seconds"`
	Points          []pointState `json:"points"`
}

type pointState struct {
	At           time.Time `json:"at"`
	Published    *float64  `json:"published_per_second,omitempty"`
	Delivered    *float64  `json:"delivered_per_second,omitempty"`
	Acknowledged *float64  `json:"acknowledged_per_second,omitempty"`
	Messages     uint64    `json:"messages"`
	Bytes        uint64    `json:"bytes"`
	OldestAge    *float64  `json:"oldest_age_seconds,omitempty"`
}

func newHistoryState(queue string, h *admin.History) historyState {
	state := historyState{Queue: queue, IntervalSeconds: h.Interval.Seconds(), Points: []pointState{}}
	for i := range h.Points {
		p := &h.Points[i]
		j := pointState{At: p.At.UTC(), Messages: p.Messages, Bytes: p.Bytes}
		if p.Rates {
			j.Published, j.Delivered, j.Acknowledged = &p.Published, &p.Delivered, &p.Acknowledged
		}
		if p.OldestAge > 0 {
			j.OldestAge = new(p.OldestAge.Seconds())
		}
		state.Points = append(state.Points, j)
	}
	return state
}

// historyRows is the approximate maximum number of rows of a table.
const historyRows = 30

// showHistory prints the history of a queue, or of the pair if queue is empty.
func showHistory(ctx context.Context, env *cli.Env, queue string, since time.Duration) error {
	if since <= 0 || since > admin.MaxHistory {
		return cli.Usage("--since %s: must be more than 0 and at most %s", since, output.Span(admin.MaxHistory))
	}
	return env.WithTimeout(ctx, func(ctx context.Context, c *client.Client) error {
		h, err := admin.New(c).History(ctx, queue, since)
		if err != nil {
			return err
		}
		if err := env.Print.Object(newHistoryState(queue, &h)); err != nil {
			return err
		}
		if len(h.Points) == 0 {
			return env.Print.Sentence("no values recorded in the last %s", output.Span(since))
		}
		return env.Print.Table([]string{
			"Until", ">Published/s", ">Delivered/s", ">Acknowledged/s", ">Messages", ">Size", ">Oldest",
		}, historyTable(&h))
	})
}

// rowInterval returns the interval of the rows for a period. It is at least the interval of the points.
func rowInterval(period, interval time.Duration) time.Duration {
	for _, step := range []time.Duration{
		10 * time.Second, 30 * time.Second, time.Minute, 2 * time.Minute, 5 * time.Minute, 10 * time.Minute, 30 * time.Minute,
	} {
		if step >= interval && period <= historyRows*step {
			return step
		}
	}
	return time.Hour
}

// historyTable combines points into rows. A row has the average rates and the last values of its points. A row without
// points has no values.
func historyTable(h *admin.History) (rows [][]any) {
	points := h.Points
	step := rowInterval(points[len(points)-1].At.Sub(points[0].At)+h.Interval, h.Interval)
	end := func(p *admin.HistoryPoint) time.Time { return p.At.Add(step - 1).Truncate(step) }
	for at := end(&points[0]); len(points) > 0; at = at.Add(step) {
		var row []*admin.HistoryPoint
		for len(points) > 0 && end(&points[0]).Equal(at) {
			row, points = append(row, &points[0]), points[1:]
		}
		if len(row) == 0 {
			rows = append(rows, []any{output.LocalTime(at), "–", "–", "–", "–", "–", "–"})
			continue
		}
		last := row[len(row)-1]
		oldest := ""
		if last.OldestAge > 0 {
			oldest = units.Age(last.OldestAge)
		}
		rows = append(rows, []any{
			output.LocalTime(last.At),
			averageRate(row, func(p *admin.HistoryPoint) float64 { return p.Published }),
			averageRate(row, func(p *admin.HistoryPoint) float64 { return p.Delivered }),
			averageRate(row, func(p *admin.HistoryPoint) float64 { return p.Acknowledged }),
			output.Count(last.Messages), output.Bytes(last.Bytes), oldest,
		})
	}
	return rows
}

func averageRate(row []*admin.HistoryPoint, value func(*admin.HistoryPoint) float64) string {
	sum, n := 0.0, 0
	for _, p := range row {
		if p.Rates {
			sum, n = sum+value(p), n+1
		}
	}
	if n == 0 {
		return ""
	}
	return units.Rate(sum / float64(n))
}
