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

// Client manages the connections to a pair or to a standalone node, its home pair. It is safe for concurrent use; one
// Client per process suffices. With two sites, the home pair is that of the primary site, unless [Options.AnySite] is
// set. If the home pair belongs to a fleet, the client can use the queues of all pairs of the fleet, unless
// [Options.FixedAddresses] is set.
type Client struct {
	opts    Options
	locator *locator // of the home pair
	owners  *owners
	// partitions are the known partitioned queues.
	partitions partitions
	stop       context.CancelFunc
	start      func(*locator) // starts the goroutine of a locator
	joined     sync.WaitGroup // goroutines of the locators, producers and consumers
	producer   *Producer      // used by Publish and PublishBatch

	mu     sync.Mutex // guards the fields below
	closed bool
	open   map[stopper]struct{} // producers and consumers, closed with the client
}

type stopper interface{ Close() error }

// Open creates a client for the nodes in a URL, such as "lockstep://node-a:7420,node-b:7420"; see [ParseURL]. It does
// not wait for a node: the calls of the client wait for an active node. Canceling ctx does not affect the client.
// Errors include [ErrInvalid].
func Open(ctx context.Context, url string) (*Client, error) {
	o, err := ParseURL(url)
	if err != nil {
		return nil, err
	}
	return OpenWith(ctx, o)
}

// OpenWith is like [Open], with options instead of a URL.
func OpenWith(ctx context.Context, o Options) (*Client, error) {
	o, err := o.withDefaults() //nolint:contextcheck // tokens are fetched until the client is closed
	if err != nil {
		return nil, err
	}
	loc, err := newLocator(o)
	if err != nil {
		return nil, err
	}
	// The client outlives this call: only Close stops the background goroutines.
	background, stop := context.WithCancel(context.WithoutCancel(ctx))
	c := &Client{opts: o, locator: loc, stop: stop, open: make(map[stopper]struct{})}
	c.start = func(l *locator) { c.joined.Go(func() { l.run(background) }) }
	c.owners = newOwners(&pairConn{locator: loc}, c.openPair)
	c.start(loc)
	c.producer, err = c.newProducer(background, ProducerOptions{})
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

// Close closes the client and its producers and consumers. Pending publishes fail with [ErrClosed]; the errors of
// publishes that were sent also match [ErrOutcomeUnknown]. To wait for pending publishes and acknowledgements, call
// [Producer.Flush] and [Consumer.Flush] first.
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
	c.owners.close()
	c.joined.Wait()
	return errors.Join(errs...)
}

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

// Active describes the active node of a pair, or a standalone node.
type Active struct {
	// Address is the address of the node, host:port.
	Address string
	// Term is the term of the pair; 0 for a standalone node.
	Term uint64
}

// WaitActive waits until a node of the home pair is active, and returns it. With two sites, this is the active node
// of the primary site, unless [Options.AnySite] is set. If ctx ends first, the error matches the context's error and
// [ErrUnavailable]. If all reachable nodes reject the credentials of the client, WaitActive returns
// [ErrUnauthenticated] or [ErrDenied]. [Options.FailFast] describes when it returns ErrUnavailable earlier.
func (c *Client) WaitActive(ctx context.Context) (Active, error) {
	t, err := c.locator.wait(ctx)
	if err != nil {
		return Active{}, c.giveUp("wait for an active node", err, nil, false)
	}
	return Active{Address: t.node.address, Term: t.term}, nil
}

func (c *Client) giveUp(op string, cause, last error, unknown bool) error {
	return c.locator.giveUp(op, cause, last, unknown)
}

// do calls fn with the connection of the active node of a pair, and repeats the call after temporary errors. It
// follows NOT_OWNER to other pairs, and records attempts without a response in d. While the outcome is unknown, every
// error matches ErrOutcomeUnknown.
func (c *Client) do(
	ctx context.Context, op string, at *pairConn, d *attempts, fn func(context.Context, *grpc.ClientConn) error,
) error {
	retry := c.opts.newBackoff()
	var last error
	refusals := 0 // consecutive rejected tokens
	for way := c.pathTo(at); ; {
		pair := way.pair
		t, err := c.await(ctx, pair, c.opts.FailFast)
		if errors.Is(err, errNoActive) {
			if err := d.allow(op, nil); err != nil {
				return err
			}
			way.restart(d)
			continue
		}
		if err == nil {
			err = ctx.Err() // an attempt that was never sent leaves no unknown outcome
		}
		if err != nil {
			return c.giveUpAt(pair, op, err, last, d.unknown)
		}
		if err := d.allow(op, t); err != nil {
			return err
		}
		began := time.Now()
		err = attempt(ctx, t, fn)
		if err == nil {
			d.answered()
			return nil
		}
		e := c.nodeError(ctx, t, err)
		if !e.answered() {
			d.unanswered()
		}
		if ctx.Err() != nil && !e.answered() {
			return c.giveUpAt(pair, op, ctx.Err(), last, d.unknown)
		}
		if e = way.follow(e, d); way.moved {
			last = way.round
			continue
		}
		d.renew(pair, e)
		if e.blocked() && !d.unknown && c.failsFast(t) {
			e = e.refused()
		}
		if !e.retry() && !c.opts.tokens.isFresh(ctx, e, began, &refusals) {
			return d.refused(op, e)
		}
		last = e.after(last)
		pair.locator.failed(e)
		pair.locator.pause(ctx, t, max(retry.NextBackOff(), e.retryAfter))
	}
}

// nodeError is asError for the error of t. With AnySite, the refusal of a replica is permanent, because the client does
// not use the primary site.
func (c *Client) nodeError(ctx context.Context, t *target, err error) *Error {
	e := asError(ctx, t.node.address, err)
	if c.opts.AnySite && e.isReplica() {
		return e.refused()
	}
	return e
}

// failsFast reports whether a request that t refuses temporarily must fail immediately, because FailFast is set and
// too few nodes are in sync.
func (c *Client) failsFast(t *target) bool { return c.opts.FailFast && t.node.locator.isShort(t.node) }

// attempt calls fn once; the call is canceled when t is no longer the target.
func attempt(ctx context.Context, t *target, fn func(context.Context, *grpc.ClientConn) error) error {
	ctx, done := t.bind(ctx)
	defer done()
	return fn(ctx, t.conn())
}

func queues(cc *grpc.ClientConn) pb.QueueServiceClient { return pb.NewQueueServiceClient(cc) }
