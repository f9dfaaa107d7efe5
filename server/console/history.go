// SPDX-License-Identifier: Apache-2.0

package console

import (
	"sync"
	"time"
)

const (
	historyPoints = 180
	historyStep   = 900 * time.Millisecond
	chartWindow   = time.Minute
	maxHistories  = 64
)

type history struct {
	mu     sync.Mutex // guards all below
	queues map[string]*past
}

type past struct {
	at     []time.Time
	values [][]*float64 // one series per line, as long as at; nil: unknown
}

func (h *history) add(key string, now time.Time, values ...*float64) past {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.queues == nil {
		h.queues = make(map[string]*past)
	}
	s := h.queues[key]
	if s == nil {
		h.makeRoom()
		s = &past{values: make([][]*float64, len(values))}
		h.queues[key] = s
	}
	if n := len(s.at); n == 0 || now.Sub(s.at[n-1]) >= historyStep {
		drop := max(0, n+1-historyPoints)
		s.at = append(append([]time.Time{}, s.at[drop:]...), now)
		for i := range s.values {
			s.values[i] = append(append([]*float64{}, s.values[i][drop:]...), values[i])
		}
	}
	return past{at: s.at, values: append([][]*float64{}, s.values...)}
}

func (h *history) makeRoom() {
	if len(h.queues) < maxHistories {
		return
	}
	oldest := ""
	for key, s := range h.queues {
		if oldest == "" || s.at[len(s.at)-1].Before(h.queues[oldest].at[len(h.queues[oldest].at)-1]) {
			oldest = key
		}
	}
	delete(h.queues, oldest)
}

func (s *past) chart(unit string, height int, labels []string, lines ...int) chart {
	c := chart{Kind: "lines", Unit: unit, Height: height}
	early := len(s.at) > 0 && s.at[len(s.at)-1].Sub(s.at[0]) < chartWindow
	if early { // a chart of one point has no width
		c.X = append(c.X, s.at[len(s.at)-1].Add(-chartWindow).Unix())
	}
	for _, at := range s.at {
		c.X = append(c.X, at.Unix())
	}
	for i, line := range lines {
		values := s.values[line]
		if early {
			values = append([]*float64{nil}, values...)
		}
		c.Series = append(c.Series, series{labels[i], values})
	}
	return c
}
