// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/client/admin"
	"github.com/lockstep-mq/lockstep/cmd/internal/output"
)

// Rows contain the averages of their points. An interval without points has no values.
func TestHistoryTable(t *testing.T) {
	start := time.Unix(1_800_000_000, 0)
	point := func(seconds int, rate float64, messages uint64) admin.HistoryPoint {
		return admin.HistoryPoint{
			At: start.Add(time.Duration(seconds) * time.Second), Rates: rate >= 0, Published: rate, Delivered: rate / 2,
			Messages: messages, Bytes: 1024 * messages, OldestAge: time.Duration(messages) * time.Minute,
		}
	}
	h := &admin.History{Interval: 10 * time.Second, Points: []admin.HistoryPoint{
		point(20, -1, 5), point(30, 10, 3), point(40, 20, 2), point(60, 30, 0),
		point(290, 40, 1), point(300, 40, 1), point(320, 0, 1),
	}}
	at := func(seconds int) string { return output.LocalTime(start.Add(time.Duration(seconds) * time.Second)) }
	require.Equal(t, [][]any{
		{at(30), "10", "5", "0", "3", "3.0 KiB", "3m"},
		{at(60), "25", "13", "0", "0", "0 B", ""},
		{at(90), "–", "–", "–", "–", "–", "–"},
		{at(120), "–", "–", "–", "–", "–", "–"},
		{at(150), "–", "–", "–", "–", "–", "–"},
		{at(180), "–", "–", "–", "–", "–", "–"},
		{at(210), "–", "–", "–", "–", "–", "–"},
		{at(240), "–", "–", "–", "–", "–", "–"},
		{at(270), "–", "–", "–", "–", "–", "–"},
		{at(300), "40", "20", "0", "1", "1.0 KiB", "1m"},
		{at(320), "0", "0", "0", "1", "1.0 KiB", "1m"},
	}, historyTable(h))
	for since, want := range map[time.Duration]time.Duration{
		time.Minute: 10 * time.Second, 5 * time.Minute: 10 * time.Second, time.Hour: 2 * time.Minute,
		90 * time.Minute: 5 * time.Minute, 24 * time.Hour: time.Hour,
	} {
		interval := 10 * time.Second
		if since > time.Hour {
			interval = time.Minute
		}
		require.Equal(t, want, rowInterval(since, interval), since)
	}
}
