// SPDX-License-Identifier: Apache-2.0

//go:build unix

package timing

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/client/admin"
	"github.com/lockstep-mq/lockstep/test/tier"
)

const (
	waiting   = "publisher that waits"
	pipelined = "publisher that pipelines"
	consuming = "consumer "
)

// call is a completed call.
type call struct{ began, ended time.Time }

// load is a set of clients that use the pair during an event. It records all errors that an application would receive.
type load struct {
	p     *pair
	queue string
	stop  func() // stops the clients and waits for them

	mu     sync.Mutex // guards the fields below
	calls  map[string][]call
	errors []string
}

// load starts a synchronous publisher, a pipelining publisher, and two consumers that confirm their acknowledgements.
func (p *pair) load() *load {
	p.t.Helper()
	l := &load{p: p, queue: "load", calls: map[string][]call{}}
	c := p.client()
	_, _, err := admin.New(c).CreateQueue(p.t.Context(), l.queue, admin.CreateQueueOptions{})
	require.NoError(p.t, err)
	ctx, cancel := context.WithCancel(context.Background())
	var work sync.WaitGroup
	l.stop = func() {
		cancel()
		work.Wait()
	}
	p.t.Cleanup(l.stop)
	work.Go(func() { l.publish(ctx, c) })
	work.Go(func() { l.pipeline(ctx, c) })
	for i := range 2 {
		work.Go(func() { l.consume(ctx, c, fmt.Sprint(consuming, i)) })
	}
	l.more()
	return l
}

// done records a successful call or, unless the test is finished, an error.
func (l *load) done(ctx context.Context, principal string, began time.Time, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case err == nil:
		l.calls[principal] = append(l.calls[principal], call{began, time.Now()})
	case ctx.Err() == nil:
		l.errors = append(l.errors, fmt.Sprintf("%s: %v", principal, err))
	}
}

func (l *load) publish(ctx context.Context, c *client.Client) {
	for ctx.Err() == nil {
		began := time.Now()
		_, err := c.Publish(ctx, l.queue, client.Message{Body: make([]byte, 512)})
		l.done(ctx, waiting, began, err)
		sleep(time.Duration(tier.Count(2, 0)) * time.Millisecond)
	}
}

func (l *load) pipeline(ctx context.Context, c *client.Client) {
	p, err := c.NewProducer(ctx, client.ProducerOptions{})
	if err != nil {
		l.done(ctx, pipelined, time.Now(), err)
		return
	}
	defer func() { _ = p.Close() }()
	tick := time.NewTicker(time.Duration(tier.Count(4, 2)) * time.Millisecond)
	defer tick.Stop()
	for ctx.Err() == nil {
		began := time.Now()
		pending := p.PublishAsync(ctx, l.queue, client.Message{Body: make([]byte, 512)})
		go func() {
			_, err := pending.Wait(ctx)
			l.done(ctx, pipelined, began, err)
		}()
		<-tick.C
	}
}

func (l *load) consume(ctx context.Context, c *client.Client, principal string) {
	consumer, err := c.Consume(ctx, l.queue, client.ConsumerOptions{})
	if err != nil {
		l.done(ctx, principal, time.Now(), err)
		return
	}
	defer func() { _ = consumer.Close() }()
	for ctx.Err() == nil {
		d, err := consumer.Receive(ctx)
		began := time.Now()
		if err == nil {
			err = d.AckSync(ctx)
		}
		l.done(ctx, principal, began, err)
		if err != nil {
			return
		}
	}
}

// count returns, for each client, the number of completed calls that began after since.
func (l *load) count(since time.Time) map[string]int {
	l.mu.Lock()
	defer l.mu.Unlock()
	counts := map[string]int{waiting: 0, pipelined: 0, consuming + "0": 0, consuming + "1": 0}
	for principal, all := range l.calls {
		for _, a := range all {
			if a.began.After(since) {
				counts[principal]++
			}
		}
	}
	return counts
}

// more waits until each client has completed 20 further calls.
func (l *load) more() {
	l.p.t.Helper()
	since := time.Now()
	l.p.w.Eventually(func() bool {
		for _, n := range l.count(since) {
			if n < 20 {
				return false
			}
		}
		return true
	}, "clients should receive responses: %v", l.failures())
}

func (l *load) failures() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]string(nil), l.errors...)
}

// pause returns the longest interval without a response to a publisher, among those that overlap the given range.
func (l *load) pause(from, to time.Time) (longest time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, principal := range []string{waiting, pipelined} {
		all := l.calls[principal]
		for i := 1; i < len(all); i++ {
			if before, at := all[i-1].ended, all[i].ended; at.After(from) && before.Before(to) {
				longest = max(longest, at.Sub(before))
			}
		}
	}
	return longest
}

// slowest returns the longest duration of the publishes that were made in the given range.
func (l *load) slowest(from, to time.Time) (longest time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, principal := range []string{waiting, pipelined} {
		for _, a := range l.calls[principal] {
			if !a.began.Before(from) && a.began.Before(to) {
				longest = max(longest, a.ended.Sub(a.began))
			}
		}
	}
	return longest
}

// end stops the clients. It fails the test if one of them received an error.
func (l *load) end() {
	l.p.t.Helper()
	l.stop()
	require.Empty(l.p.t, l.failures())
}
