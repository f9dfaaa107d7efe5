// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/client/admin"
	"github.com/lockstep-mq/lockstep/test/harness"
)

// ChainOptions configures Chain. Seed and Duration are ignored: the demo lasts until all kills are done and all orders
// are processed.
type ChainOptions struct {
	Options
	Kills int
}

// ChainVerdict is the result of the transaction demo.
type ChainVerdict struct {
	// Published is the number of messages acknowledged in the first queue.
	Published int `json:"published"`
	// Processed counts the attempts to process a message, whether the transaction was committed or not.
	Processed int `json:"processed"`
	// Refused counts commits rejected because the message had already been processed.
	Refused int `json:"refused"`
	// Stored is the number of messages in the second queue.
	Stored int `json:"stored"`
	// Missing counts messages that are not in the second queue, Doubled those that are stored there more than once.
	Missing int `json:"missing"`
	Doubled int `json:"doubled"`
	// Left is the number of messages that remain in the first queue.
	Left  uint64 `json:"left"`
	Kills int    `json:"kills"`
	// LostWorkers counts the clients of workers that were stopped intentionally, at any point of their work.
	LostWorkers int `json:"lost_workers"`
	// DigestsEqual reports whether the digests of both nodes at the same log position are equal.
	DigestsEqual bool      `json:"digests_equal"`
	Coordinator  string    `json:"coordinator"`
	Digests      [2]string `json:"-"`
	LSN          uint64    `json:"-"`
}

// Passed reports whether each message published to the first queue is in the second one exactly once, and both stores
// have the same content.
func (v ChainVerdict) Passed() bool {
	return v.Published > 0 && v.Missing == 0 && v.Doubled == 0 && v.Left == 0 && v.Stored == v.Published && v.DigestsEqual
}

const (
	chainIn, chainOut = "orders", "invoices"
	chainWorkers      = 3
	// workerLife is the lifetime of a worker. The worker then stops without settling its messages, and another worker
	// starts.
	workerLife = 900 * time.Millisecond
	drainBound = 60 * time.Second
)

type chain struct {
	run
	o         ChainOptions
	published atomic.Int64
	processed atomic.Int64
	refused   atomic.Int64
	lost      atomic.Int64
	kills     atomic.Int64
}

// Chain runs the transaction demo. The verdict is valid only if the error is nil.
func Chain(ctx context.Context, o ChainOptions) (_ ChainVerdict, err error) {
	c := &chain{run: run{Options: o.Options, ledger: newLedger()}, o: o}
	o.Screen.Event("starting %s and two nodes in %s", o.third(), o.Dir)
	c.pair, err = harness.Start(ctx, harness.Options{
		Dir: o.Dir, Settings: o.Settings, NodeSettings: o.NodeSettings, Raft: o.Raft,
	})
	if err != nil {
		return ChainVerdict{}, err
	}
	defer func() { err = errors.Join(err, c.pair.Close()) }()
	if c.client, err = c.newClient(ctx); err != nil {
		return ChainVerdict{}, err
	}
	defer func() { err = errors.Join(err, c.client.Close()) }()
	if err := c.waitInSync(ctx, startBound); err != nil {
		return ChainVerdict{}, err
	}
	for _, queue := range []string{chainIn, chainOut} {
		if _, _, err := admin.New(c.client).CreateQueue(ctx, queue, admin.CreateQueueOptions{}); err != nil {
			return ChainVerdict{}, err
		}
	}
	if err := c.script(ctx); err != nil {
		return ChainVerdict{}, err
	}
	v, err := c.check(ctx)
	if err == nil && o.Keep != nil {
		o.Keep(ctx, c.pair)
	}
	return v, err
}

func (c *chain) newClient(ctx context.Context) (*client.Client, error) {
	return client.OpenWith(ctx, client.Options{Addresses: c.pair.Addresses()})
}

func (c *chain) line() string {
	return fmt.Sprintf("%d orders published, %d attempts to process one, %d refused as already processed; %d kills",
		c.published.Load(), c.processed.Load(), c.refused.Load(), c.kills.Load())
}

func (c *chain) script(ctx context.Context) (err error) {
	c.Screen.Event("publishing %d orders per second; %d workers consume each and publish an invoice in one transaction",
		c.Rate, chainWorkers)
	c.Screen.Progress(c.line)
	defer c.Screen.Progress(nil)
	working, stopWorkers := context.WithCancel(ctx)
	publishing, stopPublisher := context.WithCancel(ctx)
	var workers, publisher sync.WaitGroup
	defer workers.Wait()
	defer stopWorkers()
	defer publisher.Wait()
	defer stopPublisher()
	failed := make(chan error, chainWorkers+1)
	for range chainWorkers {
		workers.Go(func() { failed <- c.work(working) })
	}
	publisher.Go(func() { failed <- c.publish(publishing, ctx) })
	for range c.o.Kills {
		if err := c.killOnce(ctx, failed); err != nil {
			return err
		}
	}
	stopPublisher()
	publisher.Wait()
	c.Screen.Event("publishing stopped; workers process the remaining orders")
	return c.drain(ctx)
}

// publish publishes orders until the first context ends. The client retries each order until it is acknowledged.
func (c *chain) publish(publishing, ctx context.Context) error {
	ticker := time.NewTicker(time.Second / time.Duration(c.Rate))
	defer ticker.Stop()
	for publishing.Err() == nil {
		select {
		case <-ticker.C:
		case <-publishing.Done():
			return nil
		}
		n := c.published.Load()
		if _, err := c.client.Publish(ctx, chainIn, client.Message{Body: strconv.AppendInt(nil, n, 10)}); err != nil {
			return err
		}
		c.published.Store(n + 1)
	}
	return nil
}

// work runs one client after another until ctx ends, and stops each after workerLife, at any point of its work.
func (c *chain) work(ctx context.Context) error {
	for ctx.Err() == nil {
		cl, err := c.newClient(ctx)
		if err == nil {
			err = c.workOnce(ctx, cl)
		}
		if ctx.Err() == nil && err != nil {
			return err
		}
		c.lost.Add(1)
	}
	return nil
}

// workOnce processes orders with one client. It returns nil at the end of the worker's lifetime.
func (c *chain) workOnce(ctx context.Context, cl *client.Client) (err error) {
	life, end := context.WithTimeout(ctx, workerLife)
	defer end()
	defer func() {
		if life.Err() != nil {
			err = nil // another worker processes the messages that are not settled
		}
		err = errors.Join(err, cl.Close())
	}()
	consumer, err := cl.Consume(life, chainIn, client.ConsumerOptions{Prefetch: 16})
	if err != nil {
		return err
	}
	for {
		d, err := consumer.Receive(life)
		if err != nil {
			return err
		}
		t := cl.Begin().Take(d).Publish(chainOut, client.Message{Body: d.Body})
		c.processed.Add(1)
		_, err = t.Commit(life)
		switch {
		case errors.Is(err, client.ErrProcessed):
			c.refused.Add(1)
		case err != nil:
			return err
		}
	}
}

func (c *chain) killOnce(ctx context.Context, failed <-chan error) error {
	bound, cancel := context.WithTimeout(ctx, failoverBound)
	defer cancel()
	active, err := c.client.WaitActive(bound)
	if err != nil {
		return err
	}
	victim := c.pair.Find(active.Address)
	if victim == nil {
		return fmt.Errorf("unknown active node %s", active.Address)
	}
	before := c.published.Load()
	if err := victim.Kill(); err != nil {
		return err
	}
	c.kills.Add(1)
	c.Screen.Event("killed node %s, the active one (%d of %d)", victim.Name, c.kills.Load(), c.o.Kills)
	for c.published.Load() < before+2 { // until the other node has taken over
		select {
		case err := <-failed:
			return errors.Join(errors.New("the load ended too early"), err)
		case <-bound.Done():
			return fmt.Errorf("no publish was acknowledged after the kill: %w\n%s", bound.Err(),
				c.pair.Other(victim).LogTail())
		case <-time.After(5 * time.Millisecond):
		}
	}
	if err := victim.Start(); err != nil {
		return err
	}
	return c.pair.WaitReady(bound, nil)
}

func (c *chain) drain(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, drainBound)
	defer cancel()
	for {
		q, err := admin.New(c.client).GetQueue(ctx, chainIn)
		if err != nil {
			return fmt.Errorf("wait until all orders are processed: %w", err)
		}
		if q.Messages == 0 {
			return nil
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
		}
	}
}

func (c *chain) check(ctx context.Context) (v ChainVerdict, err error) {
	v = ChainVerdict{
		Published: int(c.published.Load()), Processed: int(c.processed.Load()), Refused: int(c.refused.Load()),
		Kills: int(c.kills.Load()), LostWorkers: int(c.lost.Load()), Coordinator: c.coordinator(),
	}
	c.Screen.Event("reading the second queue")
	times := make([]int, v.Published)
	for m, err := range c.client.Browse(ctx, chainOut, client.BrowseOptions{}) {
		if err != nil {
			return v, err
		}
		v.Stored++
		n, err := strconv.Atoi(string(m.Body))
		if err != nil || n < 0 || n >= len(times) {
			return v, fmt.Errorf("the second queue contains a message that was never published: %q", m.Body)
		}
		times[n]++
	}
	for _, n := range times {
		switch {
		case n == 0:
			v.Missing++
		case n > 1:
			v.Doubled++
		}
	}
	q, err := admin.New(c.client).GetQueue(ctx, chainIn)
	if err != nil {
		return v, err
	}
	v.Left = q.Messages
	if err := c.compare(ctx); err != nil {
		return v, err
	}
	v.Digests, v.LSN, v.DigestsEqual = c.verdict.Digests, c.verdict.LSN, c.verdict.DigestsEqual
	return v, nil
}
