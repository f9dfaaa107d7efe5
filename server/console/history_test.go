// SPDX-License-Identifier: Apache-2.0

package console_test

import (
	"context"
	"encoding/json"
	"html"
	"net/url"
	"regexp"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

type shownChart struct {
	X      []int64
	Series []struct {
		Label  string
		Values []*float64
	}
}

var chartData = regexp.MustCompile(`data-chart="([^"]+)"`)

// chartsOf returns the charts of a page or of an event.
func chartsOf(t *testing.T, page string) (charts []shownChart) {
	t.Helper()
	for _, m := range chartData.FindAllStringSubmatch(page, -1) {
		var c shownChart
		require.NoError(t, json.Unmarshal([]byte(html.UnescapeString(m[1])), &c))
		for i, s := range c.Series {
			require.Len(t, s.Values, len(c.X), i)
		}
		for i := 1; i < len(c.X); i++ {
			require.GreaterOrEqual(t, c.X[i], c.X[i-1])
		}
		charts = append(charts, c)
	}
	return charts
}

// known returns the values of a series that are not null, and the times of these values.
func (c *shownChart) known(line int) (at []time.Time, values []float64) {
	for i, v := range c.Series[line].Values {
		if v != nil {
			at, values = append(at, time.Unix(c.X[i], 0)), append(values, *v)
		}
	}
	return at, values
}

// When a page is opened, its charts contain the earlier history, on both nodes and after a failover. The rates in
// the charts do not change later.
func TestChartsContainHistory(t *testing.T) { simulated(t, testChartsContainHistory) }

func testChartsContainHistory(t *testing.T) {
	active, standby := startPair(t)
	active.act("/queues/create", url.Values{"name": {"q"}})
	conn := connect(t, active.ready.Address)
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	end := sync.OnceFunc(func() {
		stop()
		<-done
		require.NoError(t, conn.Close())
	})
	defer end()
	go func() { // publish two messages per second
		defer close(done)
		for ctx.Err() == nil {
			_, _ = pb.NewQueueServiceClient(conn).Publish(ctx, &pb.PublishRequest{
				Queue: "q", Messages: []*pb.Message{{}, {}},
			})
			<-time.After(time.Second)
		}
	}()
	<-time.After(5 * time.Minute)
	for _, n := range []*pairNode{active, standby} {
		charts := chartsOf(t, n.get("/queue?name=q").body)
		require.Len(t, charts, 3)
		at, rates := charts[0].known(0)
		require.GreaterOrEqual(t, len(at), 17, "3 minutes")
		for i, rate := range rates {
			require.InDelta(t, 2, rate, 0.5, at[i])
		}
		_, depth := charts[1].known(0)
		require.Greater(t, depth[len(depth)-1]-depth[0], 300.0)
		_, ages := charts[2].known(0)
		require.InDelta(t, 310, ages[len(ages)-1], 15)
		require.Len(t, chartsOf(t, n.get("/pair").body), 2)

		for range 10 { // like a browser that stays on the page
			<-time.After(time.Second)
			charts = chartsOf(t, n.get("/queue?name=q").body)
		}
		after, rates := charts[0].known(0)
		require.Greater(t, len(after), len(at)+5)
		for i, rate := range rates {
			require.InDelta(t, 2, rate, 0.5, after[i])
		}
		for _, period := range []string{"1h", "24h"} {
			charts = chartsOf(t, n.get("/queue?name=q&period="+period).body)
			at, rates = charts[0].known(0)
			require.NotEmpty(t, at, period)
			require.InDelta(t, 2, rates[len(rates)-1], 0.1, period)
		}
	}
	end()
	active.stop()
	require.Eventually(t, func() bool { return standby.get("/queue?name=q").code == 200 }, testTimeout,
		20*time.Millisecond)
	charts := chartsOf(t, standby.get("/queue?name=q&period=1h").body)
	at, _ := charts[1].known(0)
	require.GreaterOrEqual(t, len(at), 25, "the history before the failover")
}
