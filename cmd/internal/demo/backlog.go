// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/client/admin"
)

const backlogQueues = 4

type backlog struct {
	seed     uint64
	messages [backlogQueues]int // number of messages in each queue; sequences start at 1
	bytes    atomic.Int64
}

func backlogName(queue int) string { return fmt.Sprintf("stock-%d", queue) }

// backlogBody returns the unique body of message n of a queue. Each queue has its own range of sizes.
func backlogBody(seed uint64, queue, n int) []byte {
	rng := rand.New(rand.NewPCG(seed+uint64(queue)<<32, uint64(n)+1))
	size := 0
	switch queue {
	case 0:
		size = 15_000
	case 1:
		size = 4200 + rng.IntN(300) // slightly more than two pages of 2 KiB
	case 2:
		size = 256 << rng.IntN(3)
	default:
		if size = 2000 + rng.IntN(8000); rng.IntN(200) == 0 {
			size = 100_000 + rng.IntN(200_000)
		}
	}
	b := make([]byte, size+8)
	for i := 0; i < size; i += 8 {
		binary.LittleEndian.PutUint64(b[i:], rng.Uint64())
	}
	return b[:size]
}

func (s *backlog) fill(ctx context.Context, c *client.Client, total int64) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wg sync.WaitGroup
	for q := range backlogQueues {
		wg.Go(func() {
			if err := s.fillQueue(ctx, c, q, total/backlogQueues); err != nil {
				cancel(err)
			}
		})
	}
	wg.Wait()
	if err := context.Cause(ctx); err != nil {
		return fmt.Errorf("fill the queues: %w", err)
	}
	return nil
}

func (s *backlog) fillQueue(ctx context.Context, c *client.Client, queue int, total int64) error {
	name := backlogName(queue)
	if _, _, err := admin.New(c).CreateQueue(ctx, name, admin.CreateQueueOptions{}); err != nil {
		return err
	}
	p, err := c.NewProducer(ctx, client.ProducerOptions{MaxPendingBytes: 16 << 20})
	if err != nil {
		return err
	}
	var last *client.Pending
	for filled := int64(0); filled < total; {
		body := backlogBody(s.seed, queue, s.messages[queue])
		last = p.PublishAsync(ctx, name, client.Message{Body: body})
		filled += int64(len(body))
		s.bytes.Add(int64(len(body)))
		s.messages[queue]++
	}
	if err := p.Flush(ctx); err != nil {
		return err
	}
	if r, _ := last.Wait(ctx); r.Sequence != uint64(s.messages[queue]) {
		return fmt.Errorf("%s: message %d got sequence %d", name, s.messages[queue], r.Sequence)
	}
	return p.Close()
}

func (s *backlog) count() int {
	n := 0
	for _, m := range s.messages {
		n += m
	}
	return n
}

// check reads the filled queues. Missing and changed messages count as lost; messages stored twice, or never published,
// count as duplicated.
func (s *backlog) check(ctx context.Context, c *client.Client) (lost, duplicated int, err error) {
	for q, messages := range s.messages {
		seen := make([]bool, messages)
		for m, err := range c.Browse(ctx, backlogName(q), client.BrowseOptions{}) {
			if err != nil {
				return lost, duplicated, fmt.Errorf("read %s again: %w", backlogName(q), err)
			}
			i := int(m.Sequence) - 1
			switch {
			case i < 0 || i >= messages || seen[i]:
				duplicated++
			case bytes.Equal(m.Body, backlogBody(s.seed, q, i)):
				seen[i] = true
			}
		}
		for _, ok := range seen {
			if !ok {
				lost++
			}
		}
	}
	return lost, duplicated, nil
}
