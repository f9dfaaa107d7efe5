// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"errors"
	"sync"
	"time"

	"google.golang.org/grpc"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// Client is a connection to a pair, or to a standalone node. It may be used by many goroutines at once; one per process
// is enough.
type Client struct {
	opts     Options
	locator  *locator
	stop     context.CancelFunc
	joined   sync.WaitGroup // the locator, and the goroutines of producers and consumers
	producer *Producer      // serves Publish

	mu     sync.Mutex // guards all below
	closed bool
	open   map[stopper]struct{} // producers and consumers to be closed with the client
	lanes  []*lane              // producer identities of transactions, free now
}

// stopper is a Producer or Consumer.
type stopper interface{ Close() error }

// Open makes a client. It does not wait for a node: calls do, as long as their context allows. ctx is used for nothing
// else than the time of Open. Errors: ErrInvalid.
func Open(ctx context.Context, o Options) (*Client, error) {
	o, err := o.withDefaults() //nolint:contextcheck // tokens are got for as long as the client lives
	if err != nil {
		return nil, err
	}
	loc, err := newLocator(o)
	if err != nil {
		return nil, err
	}
	// The client outlives the call that made it: only Close ends what runs in the background.
	background, stop := context.WithCancel(context.WithoutCancel(ctx))
	c := &Client{opts: o, locator: loc, stop: stop, open: make(map[stopper]struct{})}
	c.joined.Go(func() { loc.run(background) })
	c.producer, err = c.newProducer(background, ProducerOptions{})
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

// Close ends the client with its producers and consumers. Publishes that are not answered fail with ErrClosed, and with
// ErrOutcomeUnknown if they were sent; call Producer.Flush or Consumer.Flush before to wait for them.
func (c *Client) Close() error {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return nil
	}
	c.closed = true
	open := c.open
	c.open = nil
	c.mu.Unlock()
	var closing sync.WaitGroup
	var mu sync.Mutex
	var errs []error
	for s := range open {
		closing.Go(func() {
			err := s.Close()
			mu.Lock()
			defer mu.Unlock()
			errs = append(errs, err)
		})
	}
	closing.Wait()
	c.stop()
	c.locator.close()
	c.joined.Wait()
	return errors.Join(errs...)
}

// register has s closed together with the client.
func (c *Client) register(s stopper) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return ErrClosed
	}
	c.open[s] = struct{}{}
	return nil
}

func (c *Client) unregister(s stopper) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.open, s)
}

// Active is the node that serves clients.
type Active struct {
	// Address of the node, host:port.
	Address string
	// Term of the pair; 0 for a standalone node.
	Term uint64
}

// WaitActive waits until a node is active and tells which. Errors: the context's together with ErrUnavailable.
func (c *Client) WaitActive(ctx context.Context) (Active, error) {
	t, err := c.locator.wait(ctx)
	if err != nil {
		return Active{}, c.giveUp("wait for an active node", err, nil, false)
	}
	return Active{Address: t.node.address, Term: t.term}, nil
}

// giveUp makes the error of an operation that ends without an answer.
func (c *Client) giveUp(op string, cause, last error, unknown bool) error {
	var e *Error
	if errors.As(cause, &e) { // the nodes refuse this client
		return (&doubt{unknown: unknown}).refused(op, e)
	}
	if last == nil {
		last = c.locator.explain()
	}
	return &opError{op: op, cause: cause, last: last, unknown: unknown}
}

// do calls fn on the active node until it is answered, and takes note in d of what was not; d is nil for a request that
// changes nothing. As long as d is in doubt, every error is ErrOutcomeUnknown, too.
func (c *Client) do(ctx context.Context, op string, d *doubt, fn func(context.Context, *grpc.ClientConn) error) error {
	reads := d == nil
	if reads {
		d = &doubt{}
	}
	retry := c.opts.newBackoff()
	var last error
	refusals := 0 // tokens that were refused one after the other
	for {
		t, err := c.locator.wait(ctx)
		if err == nil {
			err = ctx.Err() // an attempt that is not made leaves no doubt
		}
		if err != nil {
			return c.giveUp(op, err, last, d.unknown)
		}
		began := time.Now()
		err = attempt(ctx, t, fn)
		if err == nil {
			d.answered()
			return nil
		}
		e := asError(ctx, t.node.address, err)
		if !reads && !e.answered() {
			d.unanswered()
		}
		if ctx.Err() != nil && !e.answered() {
			return c.giveUp(op, ctx.Err(), last, d.unknown)
		}
		if e.blocked() && !d.unknown && c.failsFast(t) {
			e = e.refused()
		}
		if !e.retry() && !c.opts.tokens.isFresh(ctx, e, began, &refusals) {
			return d.refused(op, e)
		}
		last = e.after(last)
		c.locator.failed(e)
		c.locator.pause(ctx, t, max(retry.NextBackOff(), e.retryAfter))
	}
}

// failsFast tells whether a request that the target refuses for now is not to be sent again: the caller wants that, and
// the pair refuses writes until another node comes back.
func (c *Client) failsFast(t *target) bool { return c.opts.FailFast && c.locator.isShort(t.node) }

// attempt calls fn once; the call ends when t is not the target any more.
func attempt(ctx context.Context, t *target, fn func(context.Context, *grpc.ClientConn) error) error {
	ctx, done := t.bind(ctx)
	defer done()
	return fn(ctx, t.conn())
}

// queues is the stub of the service for clients.
func queues(cc *grpc.ClientConn) pb.QueueServiceClient { return pb.NewQueueServiceClient(cc) }
