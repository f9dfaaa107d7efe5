// SPDX-License-Identifier: Apache-2.0

//go:build unix

package sites

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/client/admin"
)

// The queues of a load, and the subscriptions of each. One subscription is consumed, and the other retains all
// messages.
const (
	loadQueues    = 2
	loadProducers = 3
	subConsumed   = "consumed"
	subKept       = "kept"
)

func loadQueue(i int) string { return fmt.Sprint("q", i) }

// published is an acknowledged message.
type published struct {
	producer, n int
	queue       string
	done        time.Time
	client.Receipt
}

func (p *published) String() string {
	return fmt.Sprintf("%d/%d in %s (sequence %d, number %d, acknowledged at %v by %s)", p.producer, p.n, p.queue,
		p.Sequence, p.LSN, p.done, p.Address)
}

type cursor struct {
	queue    string
	sequence uint64
}

// load publishes to and consumes from all sites, and records all acknowledgements.
type load struct {
	w         *world
	client    *client.Client
	producing sync.WaitGroup
	consuming sync.WaitGroup
	stop      [2]context.CancelFunc // of producers and consumers
	producers int

	mu        sync.Mutex // guards the fields below
	acked     []published
	failed    []error
	confirmed map[cursor]time.Time   // confirmed acknowledgements
	delivered map[cursor][]time.Time // deliveries
}

func startLoad(ctx context.Context, w *world) (_ *load, err error) {
	l := &load{w: w, confirmed: map[cursor]time.Time{}, delivered: map[cursor][]time.Time{}}
	if l.client, err = w.NewClient(ctx); err != nil {
		return nil, err
	}
	for i := range loadQueues {
		o := admin.CreateQueueOptions{Subscriptions: []string{subConsumed, subKept}}
		if _, _, err := admin.New(l.client).CreateQueue(ctx, loadQueue(i), o); err != nil {
			return nil, errors.Join(err, l.client.Close())
		}
	}
	consume, stopConsuming := context.WithCancel(ctx)
	l.stop[1] = stopConsuming
	for i := range loadQueues {
		l.consuming.Go(func() { l.consume(consume, loadQueue(i)) })
	}
	if err := l.startProducing(ctx); err != nil {
		return nil, errors.Join(err, l.close())
	}
	return l, nil
}

// startProducing starts new producers.
func (l *load) startProducing(ctx context.Context) error {
	produce, stop := context.WithCancel(ctx)
	l.stop[0] = stop
	for range loadProducers {
		i := l.producers
		l.producers++
		p, err := l.client.NewProducer(ctx, client.ProducerOptions{ID: fmt.Sprint("producer-", i), Epoch: 1})
		if err != nil {
			return err
		}
		l.producing.Go(func() { l.produce(produce, i, p) })
	}
	return nil
}

// produce publishes until ctx ends, and waits for all responses. The first of the producers waits for each response
// before its next publish.
func (l *load) produce(ctx context.Context, producer int, p *client.Producer) {
	rng := rand.New(rand.NewPCG(l.w.seed, 100+uint64(producer)))
	pause := time.Duration(2+rng.IntN(50)) * time.Millisecond
	room := make(chan struct{}, 1+7*min(producer%loadProducers, 1))
	var answers sync.WaitGroup
	defer answers.Wait()
	for n := 1; ctx.Err() == nil; n++ {
		queue := loadQueue(rng.IntN(loadQueues))
		body := fmt.Sprintf("%d/%d/%s", producer, n, strings.Repeat("x", rng.IntN(1<<rng.IntN(13))))
		room <- struct{}{}
		pending := p.PublishAsync(context.WithoutCancel(ctx), queue, client.Message{Body: []byte(body)})
		answers.Go(func() {
			r, err := pending.Wait(context.WithoutCancel(ctx))
			l.mu.Lock()
			if err != nil {
				l.failed = append(l.failed, err)
			} else {
				l.acked = append(l.acked, published{producer, n, queue, time.Now(), r})
			}
			l.mu.Unlock()
			<-room
		})
		sleep(ctx, time.Duration(rng.Int64N(int64(2*pause))))
	}
}

func (l *load) consume(ctx context.Context, queue string) {
	for ctx.Err() == nil {
		c, err := l.client.Consume(ctx, queue, client.ConsumerOptions{Subscription: subConsumed, Prefetch: 16})
		for err == nil {
			var d *client.Delivery
			if d, err = c.Receive(ctx); err != nil {
				break
			}
			at := cursor{queue, d.Sequence}
			l.mu.Lock()
			l.delivered[at] = append(l.delivered[at], time.Now())
			l.mu.Unlock()
			if d.AckSync(ctx) == nil {
				l.mu.Lock()
				l.confirmed[at] = time.Now()
				l.mu.Unlock()
			}
		}
		if c != nil {
			_ = c.Close()
		}
		sleep(ctx, poll)
	}
}

// stopProducing stops the producers, and waits until all their publishes have a response.
func (l *load) stopProducing() { l.stop[0](); l.producing.Wait() }

func (l *load) close() error {
	l.stop[0]()
	l.stop[1]()
	err := l.client.Close()
	l.producing.Wait()
	l.consuming.Wait()
	return err
}

// ackedSoFar returns the acknowledged publishes, ordered by the time of the acknowledgement.
func (l *load) ackedSoFar() []published {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := slices.Clone(l.acked)
	slices.SortFunc(all, func(a, b published) int { return a.done.Compare(b.done) })
	return all
}

// id identifies a message.
type id struct{ producer, n int }

// stored reads all messages. It returns their queues and sequences, or an error if a message is duplicated or out of
// order.
func (l *load) stored(ctx context.Context) (map[id]cursor, error) {
	all := map[id]cursor{}
	for i := range loadQueues {
		last := map[int]int{}
		for m, err := range l.client.Browse(ctx, loadQueue(i), client.BrowseOptions{}) {
			if err != nil {
				return nil, err
			}
			parts := strings.Split(string(m.Body), "/")
			producer, err1 := strconv.Atoi(parts[0])
			n, err2 := strconv.Atoi(parts[1])
			if err := cmp.Or(err1, err2); err != nil {
				return nil, err
			}
			at := cursor{loadQueue(i), m.Sequence}
			if before, twice := all[id{producer, n}]; twice {
				return nil, fmt.Errorf("message %d/%d is stored at %v and %v", producer, n, before, at)
			}
			if n < last[producer] {
				return nil, fmt.Errorf("message %d/%d is stored after %d/%d in %s", producer, n, producer, last[producer],
					at.queue)
			}
			last[producer], all[id{producer, n}] = n, at
		}
	}
	return all, nil
}
