// SPDX-License-Identifier: Apache-2.0

// Command goadapter is the adapter of the Go client for test/conformance. It reads requests as JSON lines, and writes
// responses. test/conformance/README.md describes the schema.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/client/admin"
)

func main() {
	if err := serve(context.Background(), os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// adapter manages the objects named by the runner.
type adapter struct {
	mu         sync.Mutex // guards all fields below
	clients    map[string]*client.Client
	producers  map[string]*client.Producer
	consumers  map[string]*client.Consumer
	deliveries map[string]*client.Delivery // by consumer/number
	numbers    map[string]uint64           // of the last delivery of each consumer
}

// answer is one line of the output.
type answer struct {
	ID    uint64   `json:"id"`
	OK    any      `json:"ok,omitempty"`
	Error *failure `json:"error,omitempty"`
}

// failure is the error of a request and its outcome.
type failure struct {
	Outcome string `json:"outcome"`
	Reason  string `json:"reason,omitempty"`
	Message string `json:"message"`
}

// serve executes requests until the input ends. A blocked request does not delay later requests. Settlements, and the
// publishes of a named producer without a timeout, are passed to the client in the order of the lines.
func serve(ctx context.Context, in io.Reader, out io.Writer) error {
	a := &adapter{
		clients: map[string]*client.Client{}, producers: map[string]*client.Producer{},
		consumers: map[string]*client.Consumer{}, deliveries: map[string]*client.Delivery{}, numbers: map[string]uint64{},
	}
	var wg sync.WaitGroup
	answers := make(chan answer)
	written := make(chan error, 1)
	go func() {
		encoder := json.NewEncoder(out)
		var failed error
		for line := range answers {
			failed = errors.Join(failed, encoder.Encode(line))
		}
		written <- failed
	}()
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, 16<<20)
	var readErr error
	for lines.Scan() {
		var r request
		if readErr = json.Unmarshal(lines.Bytes(), &r); readErr != nil {
			break
		}
		wait, err := a.begin(ctx, &r)
		wg.Go(func() {
			var ok any
			if err == nil {
				ok, err = wait()
			}
			answers <- answer{ID: r.ID, OK: ok, Error: failureOf(err)}
		})
	}
	wg.Wait()
	close(answers)
	err := errors.Join(readErr, lines.Err(), <-written)
	for _, c := range a.clients {
		err = errors.Join(err, c.Close())
	}
	return err
}

// failureOf converts an error of the client to a failure with the implied outcome. It returns nil if err is nil.
func failureOf(err error) *failure {
	if err == nil {
		return nil
	}
	f := &failure{Outcome: "not-done", Message: err.Error()}
	if errors.Is(err, client.ErrOutcomeUnknown) {
		f.Outcome = "unknown"
	}
	if e := (*client.Error)(nil); errors.As(err, &e) {
		f.Reason = e.Reason
	}
	if f.Reason == "" && errors.Is(err, client.ErrSequenceReused) {
		f.Reason = "SEQUENCE_REUSED"
	}
	return f
}

// done is a response without content.
type done struct{}

// later is the blocking part of a request.
type later func() (any, error)

// begin executes the part of a request that must be executed in the order of the lines, and returns the part that may
// block.
func (a *adapter) begin(ctx context.Context, r *request) (later, error) {
	switch r.Op {
	case "open":
		return a.open(ctx, r)
	case "publish":
		return a.publish(ctx, r)
	case "answer":
		return a.answer(ctx, r)
	case "receive":
		return a.receive(ctx, r)
	case "flush", "consumer_close":
		return a.endOf(ctx, r)
	case "consume":
		return a.consume(ctx, r)
	case "transact":
		return a.transact(ctx, r)
	}
	c, err := named(a, a.clients, r.Client)
	if err != nil {
		return nil, err
	}
	switch r.Op {
	case "close":
		return func() (any, error) { return done{}, c.Close() }, nil
	case "queue_create":
		return func() (any, error) { return create(ctx, c, r) }, nil
	case "queue_get":
		return func() (any, error) {
			ctx, cancel := r.within(ctx)
			defer cancel()
			q, err := admin.New(c).GetQueue(ctx, r.Queue)
			return map[string]uint64{"messages_stored": q.Messages, "next_sequence": q.NextSequence}, err
		}, nil
	case "queue_delete":
		return func() (any, error) {
			ctx, cancel := r.within(ctx)
			defer cancel()
			n, err := admin.New(c).DeleteQueue(ctx, r.Queue, false)
			return map[string]uint64{"messages_stored": n}, err
		}, nil
	case "browse":
		return func() (any, error) { return browse(ctx, c, r) }, nil
	default:
		return nil, fmt.Errorf("unsupported op %q", r.Op)
	}
}

// named returns the object that an earlier request stored under name.
func named[T any](a *adapter, all map[string]T, name string) (T, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	v, ok := all[name]
	if !ok {
		return v, fmt.Errorf("%q not found", name)
	}
	return v, nil
}

// put stores an object under name, for later requests.
func put[T any](a *adapter, all map[string]T, name string, v T) {
	a.mu.Lock()
	defer a.mu.Unlock()
	all[name] = v
}

// within returns a context with the timeout of the request, if any.
func (r *request) within(ctx context.Context) (context.Context, context.CancelFunc) {
	if r.TimeoutMS == 0 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, time.Duration(r.TimeoutMS)*time.Millisecond)
}

func (a *adapter) open(ctx context.Context, r *request) (later, error) {
	c, err := client.OpenWith(ctx, client.Options{
		Addresses: r.Addresses, Token: r.Token, FixedAddresses: r.FixedAddresses,
		TLSFiles: client.TLSFiles{CA: r.CA, Cert: r.Cert, Key: r.Key},
	})
	if err != nil {
		return nil, err
	}
	put(a, a.clients, r.Client, c)
	return func() (any, error) { return done{}, nil }, nil
}

// producer returns the producer of a publish, and creates it on first use. It returns nil for the client's default
// producer.
func (a *adapter) producer(ctx context.Context, c *client.Client, r *request) (*client.Producer, error) {
	if r.Producer == "" {
		return nil, nil //nolint:nilnil // the client's default producer
	}
	if p, err := named(a, a.producers, r.Producer); err == nil {
		return p, nil
	}
	p, err := c.NewProducer(ctx, client.ProducerOptions{ID: r.ProducerID, Epoch: r.Epoch})
	if err != nil {
		return nil, err
	}
	put(a, a.producers, r.Producer, p)
	return p, nil
}

func (a *adapter) publish(ctx context.Context, r *request) (later, error) {
	c, err := named(a, a.clients, r.Client)
	if err != nil {
		return nil, err
	}
	p, err := a.producer(ctx, c, r)
	if err != nil {
		return nil, err
	}
	ms := toMessages(r.Messages)
	if p == nil {
		return func() (any, error) {
			ctx, cancel := r.within(ctx)
			defer cancel()
			return receipt(c.PublishBatch(ctx, r.Queue, ms))
		}, nil
	}
	if r.TimeoutMS > 0 {
		return func() (any, error) {
			ctx, cancel := r.within(ctx)
			defer cancel()
			return receipt(p.PublishBatch(ctx, r.Queue, ms))
		}, nil
	}
	pending := p.PublishBatchAsync(ctx, r.Queue, ms)
	return func() (any, error) { return receipt(pending.Wait(ctx)) }, nil
}

func receipt(r client.Receipt, err error) (any, error) {
	return map[string]any{"sequence": r.Sequence, "lsn": r.LSN, "duplicate": r.Duplicate}, err
}

func create(ctx context.Context, c *client.Client, r *request) (any, error) {
	ctx, cancel := r.within(ctx)
	defer cancel()
	_, created, err := admin.New(c).CreateQueue(ctx, r.Queue, admin.CreateQueueOptions{
		Subscriptions: r.Subscriptions, IfNotExists: r.IfNotExists,
		Config: admin.QueueConfig{
			Priorities: r.Config.Priorities, MaxDeliveries: r.Config.MaxDeliveries, DeadLetter: r.Config.DeadLetter,
			MaxMessages: r.Config.MaxMessages,
		},
	})
	return map[string]bool{"created": created}, err
}

func browse(ctx context.Context, c *client.Client, r *request) (any, error) {
	ctx, cancel := r.within(ctx)
	defer cancel()
	out := []message{}
	o := client.BrowseOptions{Subscription: r.Subscription, Limit: r.Limit, Filter: r.Filter, Newest: r.Newest}
	for m, err := range c.Browse(ctx, r.Queue, o) {
		if err != nil {
			return nil, err
		}
		out = append(out, fromStored(m))
	}
	return map[string]any{"messages": out}, nil
}

func (a *adapter) transact(ctx context.Context, r *request) (later, error) {
	c, err := named(a, a.clients, r.Client)
	if err != nil {
		return nil, err
	}
	t := c.Begin()
	for _, p := range r.Publish {
		t.Publish(p.Queue, toMessages(p.Messages)...)
	}
	for _, part := range []struct {
		of  []held
		add func(...*client.Delivery) *client.Txn
	}{{r.Ack, t.Ack}, {r.Take, t.Take}} {
		for _, h := range part.of {
			d, err := named(a, a.deliveries, h.key())
			if err != nil {
				return nil, err
			}
			part.add(d)
		}
	}
	return func() (any, error) {
		ctx, cancel := r.within(ctx)
		defer cancel()
		result, err := t.Commit(ctx)
		return map[string]any{"lsn": result.LSN, "duplicate": result.Duplicate}, err
	}, nil
}
