// SPDX-License-Identifier: Apache-2.0

package measure

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/Azure/go-amqp"
	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/client/admin"
	"github.com/lockstep-mq/lockstep/cmd/internal/bench"
)

// emptyPoll is the interval at which AMQP checks whether all acknowledgements are stored.
const emptyPoll = time.Millisecond

// AMQPOptions configures AMQP. The load applies to both protocols, AMQP and gRPC.
type AMQPOptions struct {
	// Addresses are the AMQP addresses of the nodes, by their names.
	Addresses map[string]string
	SizeBytes int
	// Producers is the number of producers; with go-amqp, each has a separate connection. Publishers is the number of
	// goroutines that share the producers. Each goroutine waits for its acknowledgements.
	Producers, Publishers int
	// Queues is the number of queues over which producers and consumers are distributed.
	Queues, Consumers int
	// Prefetch is the credit of each consumer.
	Prefetch int
	Duration time.Duration
	Rounds   int
}

// amqpSide is one of the two protocols. It publishes for the duration and returns the latencies, or consumes messages.
type amqpSide struct {
	name    string
	publish func(context.Context, bench.Target, []string, *AMQPOptions) (*hdrhistogram.Histogram, error)
	consume func(context.Context, bench.Target, []string, int, *AMQPOptions) (*hdrhistogram.Histogram, error)
}

// AMQP measures go-amqp and the Go client alternately, with the same load: in each round, each of them publishes for
// o.Duration, and then consumes its messages until all acknowledgements are stored. AMQP calls report with each result
// and, after the last round, with the medians. Those of go-amqp have the ratio to the Go client.
func AMQP(ctx context.Context, t bench.Target, o AMQPOptions, report func(bench.Result) error) error {
	sides := []amqpSide{{"grpc", publishGRPC, consumeGRPC}, {"amqp", publishAMQP, consumeAMQP}}
	results := make(map[string][]bench.Result)
	for round := range o.Rounds {
		for i := range sides {
			s := sides[(i+round)%len(sides)]
			both, err := s.round(ctx, t, &o)
			if err != nil {
				return fmt.Errorf("%s: %w", s.name, err)
			}
			for _, r := range both {
				r.Round = round + 1
				results[r.Phase] = append(results[r.Phase], r)
				if err := report(r); err != nil {
					return err
				}
			}
		}
	}
	for _, phase := range []string{"publish ", "consume "} {
		base, m := bench.Median(results[phase+"grpc"]), bench.Median(results[phase+"amqp"])
		m.Ratio, m.CPURatio, m.Comment = m.Rate/base.Rate, m.CPUPerMessage()/base.CPUPerMessage(), "relative to gRPC"
		for _, r := range []bench.Result{base, m} {
			if err := report(r); err != nil {
				return err
			}
		}
	}
	return nil
}

// round publishes and consumes, and returns both results.
func (s amqpSide) round(ctx context.Context, t bench.Target, o *AMQPOptions) (results []bench.Result, _ error) {
	names := bench.QueueNames(o.Queues)
	err := bench.WithQueues(ctx, t.Client, names, func() error {
		messages := 0
		for _, phase := range []string{"publish", "consume"} {
			r := bench.Result{
				Workload: "amqp", Phase: phase + " " + s.name, Setup: t.Setup, Sync: t.Sync, SizeBytes: o.SizeBytes,
				Queues: o.Queues, Producers: o.Producers, Publishers: o.Publishers, Consumers: o.Consumers, Prefetch: o.Prefetch,
			}
			m, start := bench.NewMeter(t.Processes, t.Dir), time.Now()
			var h *hdrhistogram.Histogram
			var err error
			if phase == "publish" {
				if h, err = s.publish(ctx, t, names, o); err == nil {
					messages = int(h.TotalCount())
				}
			} else {
				h, err = s.consume(ctx, t, names, messages, o)
			}
			if err != nil {
				return err
			}
			r.Duration(time.Since(start), messages, h)
			r.Cost(m)
			results = append(results, r)
		}
		return nil
	})
	return results, err
}

func publishGRPC(
	ctx context.Context, t bench.Target, queues []string, o *AMQPOptions,
) (*hdrhistogram.Histogram, error) {
	return bench.PublishNew(ctx, t.Client, queues, bench.PublishOptions{
		SizeBytes: o.SizeBytes, Producers: o.Producers, Publishers: o.Publishers, Window: 1, Queues: o.Queues,
		Duration: o.Duration,
	})
}

func consumeGRPC(
	ctx context.Context, t bench.Target, queues []string, messages int, o *AMQPOptions,
) (_ *hdrhistogram.Histogram, err error) {
	consumers, end, err := bench.NewConsumers(ctx, t.Client, queues, o.Consumers, o.Prefetch)
	defer func() { err = errors.Join(err, end()) }()
	if err != nil {
		return nil, err
	}
	return bench.Drain(ctx, consumers, messages)
}

// amqpSessions opens n connections to the active, with one session each.
func amqpSessions(
	ctx context.Context, t bench.Target, n int, o *AMQPOptions,
) (sessions []*amqp.Session, end func(), _ error) {
	var conns []*amqp.Conn
	end = func() {
		for _, c := range conns {
			_ = c.Close() // the results of the measurement are complete
		}
	}
	active, err := t.Pair.WaitActive(ctx)
	if err != nil {
		return nil, end, fmt.Errorf("wait for the active: %w", err)
	}
	for range n {
		conn, err := amqp.Dial(ctx, "amqp://"+o.Addresses[active.Name], &amqp.ConnOptions{SASLType: amqp.SASLTypeAnonymous()})
		if err != nil {
			return nil, end, fmt.Errorf("connect to %s: %w", active.Name, err)
		}
		conns = append(conns, conn)
		session, err := conn.NewSession(ctx, nil)
		if err != nil {
			return nil, end, fmt.Errorf("open a session: %w", err)
		}
		sessions = append(sessions, session)
	}
	return sessions, end, nil
}

func publishAMQP(
	ctx context.Context, t bench.Target, queues []string, o *AMQPOptions,
) (*hdrhistogram.Histogram, error) {
	sessions, end, err := amqpSessions(ctx, t, o.Producers, o)
	defer end()
	if err != nil {
		return nil, err
	}
	senders := make([]*amqp.Sender, len(sessions))
	for i, s := range sessions {
		if senders[i], err = s.NewSender(ctx, queues[i%len(queues)], nil); err != nil {
			return nil, fmt.Errorf("open a sending link: %w", err)
		}
	}
	body, until := bench.Body(o.SizeBytes), time.Now().Add(o.Duration)
	return inParallel(ctx, o.Publishers, func(ctx context.Context, i int, h *hdrhistogram.Histogram) error {
		for now := time.Now(); now.Before(until); now = time.Now() {
			if err := senders[i%len(senders)].Send(ctx, amqp.NewMessage(body), nil); err != nil {
				return fmt.Errorf("send: %w", err)
			}
			bench.Record(h, time.Since(now))
		}
		return nil
	})
}

func consumeAMQP(
	ctx context.Context, t bench.Target, queues []string, messages int, o *AMQPOptions,
) (*hdrhistogram.Histogram, error) {
	sessions, end, err := amqpSessions(ctx, t, o.Consumers, o)
	defer end()
	if err != nil {
		return nil, err
	}
	receive, stop := context.WithCancel(ctx)
	defer stop()
	var received atomic.Int64
	h, err := inParallel(ctx, o.Consumers, func(ctx context.Context, i int, h *hdrhistogram.Histogram) error {
		r, err := sessions[i].NewReceiver(ctx, queues[i%len(queues)], &amqp.ReceiverOptions{Credit: int32(o.Prefetch)})
		if err != nil {
			return fmt.Errorf("open a receiving link: %w", err)
		}
		for {
			start := time.Now()
			m, err := r.Receive(receive, nil)
			if receive.Err() != nil {
				return ctx.Err()
			}
			if err != nil {
				return fmt.Errorf("receive: %w", err)
			}
			bench.Record(h, time.Since(start))
			if err := r.AcceptMessage(ctx, m); err != nil {
				return fmt.Errorf("accept: %w", err)
			}
			if received.Add(1) == int64(messages) {
				stop()
			}
		}
	})
	if err != nil {
		return nil, err
	}
	return h, awaitEmpty(ctx, t.Client, queues)
}

// awaitEmpty waits until all messages of the queues are acknowledged.
func awaitEmpty(ctx context.Context, c *client.Client, queues []string) error {
	for _, name := range queues {
		for {
			q, err := admin.New(c).GetQueue(ctx, name)
			if err != nil {
				return err
			}
			if q.Messages == 0 {
				break
			}
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(emptyPoll):
			}
		}
	}
	return nil
}

// inParallel runs n goroutines with one histogram each, and returns their sum. The first error cancels the context of
// the others.
func inParallel(
	ctx context.Context, n int, run func(context.Context, int, *hdrhistogram.Histogram) error,
) (*hdrhistogram.Histogram, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	all := make([]*hdrhistogram.Histogram, n)
	var wg sync.WaitGroup
	for i := range all {
		all[i] = bench.NewHistogram()
		wg.Go(func() {
			if err := run(ctx, i, all[i]); err != nil {
				cancel(err)
			}
		})
	}
	wg.Wait()
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	sum := bench.NewHistogram()
	for _, h := range all {
		sum.Merge(h)
	}
	return sum, nil
}
