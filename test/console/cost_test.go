// SPDX-License-Identifier: Apache-2.0

//go:build unix && deep

package console_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/cookiejar"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/client"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

const (
	costQueues   = 10_000
	costBrowsers = 5
	costWindow   = 2 * time.Second
)

// Five browsers that show the table of 10,000 queues reduce a publisher's median rate by at most 3 %. Time windows with
// and without browsers alternate, for LOCKSTEP_CONSOLE_COST pairs of windows.
func TestConsoleCost(t *testing.T) {
	pairs, _ := strconv.Atoi(os.Getenv("LOCKSTEP_CONSOLE_COST"))
	if pairs == 0 {
		t.Skip("LOCKSTEP_CONSOLE_COST, the number of pairs of windows, is not set")
	}
	w := startOpen(t, map[string]string{"limits.queues": "20000"})
	active, _ := w.inSync()
	queues := pb.NewQueueServiceClient(active.Conn())
	names := make(chan string)
	var making sync.WaitGroup
	for range 64 {
		making.Go(func() {
			for name := range names {
				if _, err := queues.CreateQueue(t.Context(), &pb.CreateQueueRequest{Name: name}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for i := range costQueues {
		names <- fmt.Sprintf("q%05d", i)
	}
	close(names)
	making.Wait()

	c, err := client.OpenWith(t.Context(), client.Options{Addresses: w.pair.Addresses()})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	var published atomic.Uint64
	ctx, stop := context.WithCancel(t.Context())
	var publishing sync.WaitGroup
	t.Cleanup(publishing.Wait)
	t.Cleanup(stop)
	for i := range 4 {
		p, err := c.NewProducer(ctx, client.ProducerOptions{})
		require.NoError(t, err)
		pending := make(chan *client.Pending, 4096)
		publishing.Go(func() {
			body := make([]byte, 1024)
			for n := 0; ctx.Err() == nil; n++ {
				pending <- p.PublishAsync(ctx, fmt.Sprintf("q%05d", (4*n+i)%costQueues), client.Message{Body: body})
			}
			close(pending)
		})
		publishing.Go(func() {
			for e := range pending {
				if _, err := e.Wait(ctx); err == nil {
					published.Add(1)
				}
			}
		})
	}
	var bytesSeen atomic.Uint64
	window := func(browsers int) float64 {
		ctx, cancel := context.WithCancel(t.Context())
		var watching sync.WaitGroup
		for range browsers {
			watching.Go(func() { watchQueues(ctx, w.console[active.Name], &bytesSeen) })
		}
		<-time.After(costWindow / 4) // until the browsers are connected
		from, start := published.Load(), time.Now()
		<-time.After(costWindow)
		rate := float64(published.Load()-from) / time.Since(start).Seconds()
		cancel()
		watching.Wait()
		return rate
	}
	window(0)
	var without, with []float64
	for i := range pairs {
		if i%2 == 0 {
			without, with = append(without, window(0)), append(with, window(costBrowsers))
		} else {
			with, without = append(with, window(costBrowsers)), append(without, window(0))
		}
	}
	ratios := make([]float64, pairs)
	for i := range ratios {
		ratios[i] = with[i] / without[i]
	}
	slices.Sort(ratios)
	load, _ := os.ReadFile("/proc/loadavg")
	require.NotZero(t, bytesSeen.Load(), "the browsers received nothing")
	t.Logf("messages per second without browsers %.0f, with %d browsers %.0f; ratios %.3f, median %.3f; received %d "+
		"KiB; load %s",
		without, costBrowsers, with, ratios, ratios[pairs/2], bytesSeen.Load()>>10, load)
	require.Greater(t, ratios[pairs/2], 0.97)
}

// watchQueues simulates a browser that shows the table of queues.
func watchQueues(ctx context.Context, base string, seen *atomic.Uint64) {
	jar, _ := cookiejar.New(nil) // never fails
	browser := &http.Client{Jar: jar}
	get := func(path string) {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, base+path, nil)
		if err != nil {
			return
		}
		resp, err := browser.Do(req)
		if err != nil {
			return
		}
		_, _ = io.Copy(counting{seen}, resp.Body) // until the window ends
		_ = resp.Body.Close()
	}
	const table = "/queues?order=descending&sort=messages"
	get(table)
	get("/events" + table)
}

// counting is an io.Writer that counts bytes.
type counting struct{ n *atomic.Uint64 }

func (c counting) Write(b []byte) (int, error) {
	c.n.Add(uint64(len(b)))
	return len(b), nil
}
