// SPDX-License-Identifier: Apache-2.0

package console

import (
	"context"
	"maps"
	"math"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

const (
	livePoints   = 180
	liveStep     = 900 * time.Millisecond
	livePeriod   = 3 * time.Minute
	maxHistories = 64
	// liveGap is the time after which live points are discarded if no values were added.
	liveGap = 5 * time.Second
	// recordedGap is the minimum time between the last recorded point and the first live point that is shown as a
	// gap.
	recordedGap = 20 * time.Second
	// recordedFor is the time for which recorded points are cached.
	recordedFor = 5 * time.Second
)

// period is a time range that charts can show. Only the shortest period has live points.
type period struct {
	Name, Title string
	Period      time.Duration
	step        time.Duration // minimum interval between points
}

var periods = []period{ //nolint:gochecknoglobals // a table
	{"", "3 minutes", livePeriod, 0},
	{"1h", "1 hour", time.Hour, 0},
	{"24h", "24 hours", 24 * time.Hour, 5 * time.Minute},
}

// period returns the period that the charts of a page show.
func (v *View) period() period {
	for _, p := range periods {
		if p.Name == v.Query.Get("period") {
			return p
		}
	}
	return periods[0]
}

// periodLink is a link to the same page with another period.
type periodLink struct {
	Title, Link string
	Current     bool
}

func (v *View) periodLinks(path string) (links []periodLink) {
	for _, p := range periods {
		query := maps.Clone(v.Query)
		query.Del("period")
		if p.Name != "" {
			query = maps.Clone(query)
			query.Set("period", p.Name)
		}
		link := path
		if len(query) > 0 {
			link += "?" + query.Encode()
		}
		links = append(links, periodLink{p.Title, link, p.Name == v.period().Name})
	}
	return links
}

// Indexes of the values of a point. A value is nil if it is unknown.
const (
	linePublished = iota
	lineDelivered
	lineAcknowledged
	lineMessages
	lineAge // age of the oldest message, in seconds
	lineLag // lag of a replica site, in seconds; not recorded
	lineCount
)

type point struct {
	at     time.Time
	values [lineCount]*float64
}

// history contains the live points of the pair and of queues, and a cache of recorded points.
type history struct {
	mu     sync.Mutex // guards the fields below
	queues map[string]*past
}

type past struct {
	live     []point
	recorded map[string]recorded // by the name of the period
}

type recorded struct {
	at     time.Time // time of the request
	points []point
}

// add adds a live point of a queue or of the pair, unless the last one is less than liveStep old. After a gap of more
// than liveGap, it first discards the earlier points.
func (h *history) add(key string, now point) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.queues == nil {
		h.queues = make(map[string]*past)
	}
	s := h.queues[key]
	if s == nil {
		h.makeRoom()
		s = &past{recorded: make(map[string]recorded)}
		h.queues[key] = s
	}
	if n := len(s.live); n > 0 && now.at.Sub(s.live[n-1].at) > liveGap {
		s.live = nil
	}
	if n := len(s.live); n == 0 || now.at.Sub(s.live[n-1].at) >= liveStep {
		s.live = append(append([]point{}, s.live[max(0, n+1-livePoints):]...), now)
	}
}

func (h *history) makeRoom() {
	if len(h.queues) < maxHistories {
		return
	}
	oldest := ""
	for key, s := range h.queues {
		if oldest == "" || s.live[len(s.live)-1].at.Before(h.queues[oldest].live[len(h.queues[oldest].live)-1].at) {
			oldest = key
		}
	}
	delete(h.queues, oldest)
}

// points returns the points of a period that ends at the time of the last call of add. It requests recorded points
// over the connection that active returns. If the request fails, it omits recorded points.
func (h *history) points(
	ctx context.Context, key, queue string, p period, active func(context.Context) (grpc.ClientConnInterface, error),
) []point {
	h.mu.Lock()
	s := h.queues[key]
	if s == nil {
		h.mu.Unlock()
		return nil
	}
	live, known := s.live, s.recorded[p.Name]
	h.mu.Unlock()
	now := live[len(live)-1].at
	begin := now.Add(-p.Period)
	if p.Period == livePeriod && len(live) == livePoints {
		return live
	}
	if now.Sub(known.at) >= recordedFor || now.Before(known.at) {
		known = recorded{now, fetch(ctx, queue, p, active)}
		h.mu.Lock()
		s.recorded[p.Name] = known
		h.mu.Unlock()
	}
	if p.Period != livePeriod {
		return append([]point{{at: begin.Truncate(time.Minute)}}, known.points...)
	}
	out := []point{{at: begin}}
	for _, one := range known.points {
		if one.at.After(begin) && one.at.Before(live[0].at) {
			out = append(out, one)
		}
	}
	if last := out[len(out)-1].at; live[0].at.Sub(last) > recordedGap {
		out = append(out, point{at: last.Add(time.Second)})
	}
	return append(out, live...)
}

// fetch returns recorded points. It adds a point with unknown values at the start of each gap.
func fetch(
	ctx context.Context, queue string, p period, active func(context.Context) (grpc.ClientConnInterface, error),
) (points []point) {
	cc, err := active(ctx)
	if err != nil {
		return nil
	}
	resp, err := pb.NewQueueServiceClient(cc).GetHistory(ctx, &pb.GetHistoryRequest{
		Queue: queue, Since: durationpb.New(p.Period),
	})
	if err != nil {
		return nil
	}
	step := resp.GetInterval().AsDuration()
	for _, one := range resp.GetPoints() {
		next := point{at: one.GetAt().AsTime(), values: [lineCount]*float64{
			one.PublishedPerSecond, one.DeliveredPerSecond, one.AcknowledgedPerSecond, new(float64(one.GetMessages())),
			new(one.GetOldestAge().AsDuration().Seconds()), nil,
		}}
		if n := len(points); n > 0 && next.at.Sub(points[n-1].at) > step {
			points = append(points, point{at: points[n-1].at.Add(step)})
		}
		points = append(points, next)
	}
	if step < p.step {
		return combined(points, p.step)
	}
	return points
}

// combined merges points into intervals of length step. It averages the rates. For the other values, it uses the
// last point of each interval.
func combined(points []point, step time.Duration) (out []point) {
	for len(points) > 0 {
		end := points[0].at.Add(step - 1).Truncate(step)
		n := 0
		for n < len(points) && !points[n].at.After(end) {
			n++
		}
		one := points[n-1]
		for i := range lineMessages {
			sum, count := 0.0, 0.0
			for _, p := range points[:n] {
				if v := p.values[i]; v != nil {
					sum, count = sum+*v, count+1
				}
			}
			if one.values[i] = nil; count > 0 {
				one.values[i] = new(math.Round(sum/count*1000) / 1000)
			}
		}
		out, points = append(out, one), points[n:]
	}
	return out
}

// line is a line of a chart.
type line struct {
	label string
	value int
}

func rateLines() []line {
	return []line{{"published/s", linePublished}, {"delivered/s", lineDelivered}, {"acknowledged/s", lineAcknowledged}}
}

func chartOf(points []point, unit string, height int, lines ...line) chart {
	c := chart{Kind: "lines", Unit: unit, Height: height}
	for _, p := range points {
		c.X = append(c.X, p.at.Unix())
	}
	for _, l := range lines {
		values := make([]*float64, len(points))
		for i := range points {
			values[i] = points[i].values[l.value]
		}
		c.Series = append(c.Series, series{l.label, values})
	}
	return c
}
