// SPDX-License-Identifier: Apache-2.0

//go:build unix && deep

package hostile

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/client/admin"
)

// Thousands of calls on one connection do not exceed the memory limit of a client, and the legitimate client is not
// affected.
func TestMemoryOfOneClient(t *testing.T) {
	if testing.Short() {
		t.Skip("the test takes 15 seconds")
	}
	all := chosenFrom(memoryAttacks(), os.Getenv("LOCKSTEP_HOSTILE_ONLY"))
	if len(all) == 0 {
		t.Skip("no selected attack is on memory")
	}
	each := time.Second
	if long, ok := os.LookupEnv("LOCKSTEP_HOSTILE"); ok {
		total, err := time.ParseDuration(long)
		require.NoError(t, err, "LOCKSTEP_HOSTILE")
		each = total / time.Duration(len(all))
	}
	p, active, _, metrics := victim(t, nil)
	attack := plan{Address: active.Address, For: each, Files: 100, Queue: "target"}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	k, err := p.NewClient(ctx)
	require.NoError(t, err)
	defer func() { _ = k.Close() }()
	probe(t, k, &attack)
	for i := range 500 { // so that the list of queues is long
		_, _, err := admin.New(k).CreateQueue(ctx, fmt.Sprint(strings.Repeat("long.", 40), i), admin.CreateQueueOptions{})
		require.NoError(t, err)
	}
	goroutines, connections := gauge(t, metrics, "go_goroutines"), gauge(t, metrics, "lockstep_connections")
	t.Logf("before: %d MiB", peakMemory(t, active.PID())>>20)
	for i, a := range all {
		one := attack
		one.Attack = a.name
		if runtime.GOOS == "linux" {
			one.From = "127.0.0.2"
			one = one.from(i)
		}
		over := make(chan struct{})
		report := map[string]*tally{}
		go func() {
			defer close(over)
			attackAll(t, one, report) //nolint:testifylint // asserts without ending the test
		}()
		slowest := publishUntil(t, k, over)
		logSummary(t, report)
		peak := peakMemory(t, active.PID())
		t.Logf("%s: memory %d MiB at most so far, budget %d MiB; slowest publish of the legitimate client %v", a.name,
			peak>>20, budget>>20, slowest)
		assert.LessOrEqual(t, peak, int64(budget+budget/10), "memory, with %s", a.name)
		if t.Failed() {
			return // the peak would hide those of other attacks
		}
	}
	var g, c float64
	if !assert.Eventually(t, func() bool {
		g, c = gauge(t, metrics, "go_goroutines"), gauge(t, metrics, "lockstep_connections")
		return g <= goroutines+20 && c <= connections+1 // the nodes may open another connection to compare their contents
	}, bound, 200*time.Millisecond, "goroutines and connections do not return to %v and %v", goroutines, connections) {
		t.Logf("%v goroutines and %v connections; goroutines:\n%s", g, c, stacks(t, metrics))
	}
}

// stacks returns the goroutines of the node, grouped by stack.
func stacks(t *testing.T, metrics string) string {
	t.Helper()
	r, err := http.Get("http://" + metrics + "/debug/pprof/goroutine?debug=1")
	require.NoError(t, err)
	defer func() { require.NoError(t, r.Body.Close()) }()
	text, err := io.ReadAll(io.LimitReader(r.Body, 64<<10))
	require.NoError(t, err)
	return string(text)
}

// publishUntil publishes small and large messages, which must succeed, and returns the longest duration.
func publishUntil(t *testing.T, k *client.Client, over <-chan struct{}) (slowest time.Duration) {
	t.Helper()
	for i := 0; ; i++ {
		select {
		case <-over:
			return slowest
		default:
		}
		body := make([]byte, 512)
		if i%8 == 7 {
			body = make([]byte, 4<<20)
		}
		ctx, cancel := context.WithTimeout(t.Context(), bound)
		start := time.Now()
		_, err := k.Publish(ctx, "good", client.Message{Body: body})
		cancel()
		assert.NoError(t, err, "the legitimate client") //nolint:testifylint // the test must wait for the attack
		slowest = max(slowest, time.Since(start))
		pause(t.Context(), 20*time.Millisecond)
	}
}
