// SPDX-License-Identifier: Apache-2.0

//go:build unix

package cluster

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/client/admin"
	"github.com/lockstep-mq/lockstep/test/harness/historycheck"
)

// Subscriptions of each queue of a workload's producers.
const (
	// SubRaw is consumed on the plain gRPC stream.
	SubRaw = "raw"
	// SubClient is consumed through the client package.
	SubClient = "client"
	// SubShared is consumed by several plain streams concurrently.
	SubShared = "shared"
	// SubAudit is never consumed, so that the queue retains all messages until the end.
	SubAudit = "audit"
)

// sharers is the number of streams of each shared subscription.
const sharers = 3

// WorkloadOptions configures a Workload. The zero value is usable; Seed should be set.
type WorkloadOptions struct {
	// Prefix is the prefix of the queues' names. Default "work-".
	Prefix string
	// Queues and Producers are the numbers of queues and producers. Defaults 2 and 3. The first producer is synchronous;
	// the others pipeline.
	Queues, Producers int
	// PerSecond is the maximum rate of each producer, in messages per second. Default 500.
	PerSecond int
	// InFlight is the maximum number of messages in flight per pipelining producer. Default 64.
	InFlight int
	// LargeBytes limits the size of the few large messages. Default 256 KiB.
	LargeBytes int
	// OperationsPerSecond limits the average rate of operations of each application. Default 10; if negative, no
	// applications run.
	OperationsPerSecond int
	// NoAdministration disables the purges, queue creations and queue deletions of the applications, for nodes of release
	// 0.1.0, which execute a retried request of these kinds again.
	NoAdministration bool
	// Plain omits standard fields and typed properties, for nodes of release 0.1.0, which do not support them.
	Plain bool
	// Features adds applications that use other queue features: forwards, filters, delays, expiry, priorities,
	// retention, deduplication, prepared transactions. Nodes of release 0.1.0 do not support them.
	Features bool
	// SideClientsPerSecond is the maximum rate of messages published to each node directly, regardless of its role.
	// Default 10; if negative, no side clients run.
	SideClientsPerSecond int
	Seed                 uint64
}

func (o WorkloadOptions) withDefaults() WorkloadOptions {
	set := func(v *int, d int) {
		if *v == 0 {
			*v = d
		}
	}
	set(&o.Queues, 2)
	set(&o.Producers, 3)
	set(&o.PerSecond, 500)
	set(&o.InFlight, 64)
	set(&o.LargeBytes, 256<<10)
	set(&o.OperationsPerSecond, 10)
	set(&o.SideClientsPerSecond, 10)
	if o.Prefix == "" {
		o.Prefix = "work-"
	}
	return o
}

// Target is the pair that a Workload uses: a Pair or a simulated pair. A fleet of several pairs also implements
// Locator; both nodes then means all nodes.
type Target interface {
	// Addresses returns the client addresses of both nodes.
	Addresses() []string
	// NewClient creates a client of both nodes. more are additional options of its connections.
	NewClient(ctx context.Context, more ...grpc.DialOption) (*client.Client, error)
	// NewClientOf creates a client that reaches only the node at the given address.
	NewClientOf(ctx context.Context, address string) (*client.Client, error)
	// ConnTo returns a connection to the node at a client address, regardless of the node's role.
	ConnTo(address string) *grpc.ClientConn
	// WaitApplied waits until both nodes have applied the same last record. No client may publish concurrently.
	WaitApplied(ctx context.Context) error
	// Digests returns the digests of both nodes at the same record.
	Digests(ctx context.Context) ([]historycheck.Digest, error)
}

// Locator is implemented by a Target that consists of several pairs, each of which has some of the queues.
type Locator interface {
	// Locate returns the client address of the active node that has a queue.
	Locate(ctx context.Context, queue string) (address string, err error)
}

// Workload publishes to and consumes from queues that it creates, and records all responses.
type Workload struct {
	pair    Target
	opts    WorkloadOptions
	history *historycheck.History
	client  *client.Client
	queues  []string

	producers   []*producer
	apps        *applications
	sideClients *sideClients
	features    *features
	streams     atomic.Uint64 // number of streams and consumers so far

	stopPublishing, stopConsuming context.CancelFunc
	publishing, consuming         sync.WaitGroup
}

// StartWorkload creates the queues, and starts the workload. Finish or Abort stops it.
func StartWorkload(ctx context.Context, p Target, o WorkloadOptions) (_ *Workload, err error) {
	w := &Workload{pair: p, opts: o.withDefaults(), history: historycheck.NewHistory()}
	// If a node rejects a retry, all messages in flight may have an unknown outcome.
	w.history.MaxUnknown = w.opts.Producers * w.opts.InFlight
	if w.client, err = p.NewClient(ctx, grpc.WithChainStreamInterceptor(w.history.WatchStreams)); err != nil {
		return nil, fmt.Errorf("workload: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, w.client.Close())
		}
	}()
	for i := range w.opts.Queues {
		w.queues = append(w.queues, fmt.Sprintf("%s%d", w.opts.Prefix, i))
		queue := admin.CreateQueueOptions{Subscriptions: []string{SubRaw, SubClient, SubShared, SubAudit}}
		if _, _, err := admin.New(w.client).CreateQueue(ctx, w.queues[i], queue); err != nil {
			return nil, fmt.Errorf("workload: %w", err)
		}
	}
	// Publishers and consumers run until they are stopped, regardless of the context of this call.
	pctx, stopPublishing := context.WithCancel(context.WithoutCancel(ctx))
	cctx, stopConsuming := context.WithCancel(context.WithoutCancel(ctx))
	w.stopPublishing, w.stopConsuming = stopPublishing, stopConsuming
	for i := range w.opts.Producers {
		producer, err := w.newProducer(ctx, uint32(i+1))
		if err != nil {
			w.Abort()
			return nil, err
		}
		w.producers = append(w.producers, producer)
		w.publishing.Go(func() { producer.run(pctx, i == 0) })
	}
	for i, q := range w.queues {
		raw := &rawConsumer{w: w, queue: q, sub: SubRaw, rng: rand.New(rand.NewPCG(w.opts.Seed, 1000+uint64(i)))}
		w.consuming.Go(func() { raw.run(cctx) })
		for k := range sharers {
			raw := &rawConsumer{
				w: w, queue: q, sub: SubShared, rng: rand.New(rand.NewPCG(w.opts.Seed, 4000+uint64(i*sharers+k))),
			}
			w.consuming.Go(func() { raw.run(cctx) })
		}
		library := &clientConsumer{
			w: w, queue: q, sub: SubClient,
			rng: rand.New(rand.NewPCG(w.opts.Seed, 2000+uint64(i))),
		}
		w.consuming.Go(func() { library.run(cctx) })
	}
	if err := w.startOthers(ctx); err != nil {
		w.Abort()
		return nil, err
	}
	return w, nil
}

// startOthers starts applications, side clients and features.
func (w *Workload) startOthers(ctx context.Context) (err error) {
	if w.opts.OperationsPerSecond > 0 {
		if w.apps, err = w.startApplications(ctx); err != nil {
			return err
		}
	}
	if w.opts.SideClientsPerSecond > 0 {
		if w.sideClients, err = w.startSideClients(ctx); err != nil {
			return err
		}
	}
	if w.opts.Features {
		w.features, err = w.startFeatures(ctx)
	}
	return err
}

// stopOthers stops applications, side clients and features.
func (w *Workload) stopOthers(ctx context.Context) error {
	if w.sideClients != nil {
		w.sideClients.end()
	}
	if w.features != nil {
		if err := w.features.finish(ctx); err != nil {
			return err
		}
	}
	if w.apps != nil {
		w.apps.finish()
	}
	return nil
}

// kept returns the queues of the producers and the side clients, which retain all published messages.
func (w *Workload) kept() []string {
	kept := slices.Clone(w.queues)
	if w.sideClients != nil {
		kept = append(kept, w.sideClients.queue)
	}
	return kept
}

// History returns the history recorded so far.
func (w *Workload) History() *historycheck.History { return w.history }

// activeNode waits until the client has found an active node, and returns its address. If the target is a Locator, it
// is the node that has the queue.
func (w *Workload) activeNode(ctx context.Context, queue string) (string, error) {
	if l, is := w.pair.(Locator); is {
		address, err := l.Locate(ctx, queue)
		if err != nil {
			return "", fmt.Errorf("workload: %w", err)
		}
		return address, nil
	}
	active, err := w.client.WaitActive(ctx)
	if err != nil {
		return "", fmt.Errorf("workload: %w", err)
	}
	return active.Address, nil
}

// untilReplaced waits until the node at an address is no longer the active node of a queue, or ctx is done.
func (w *Workload) untilReplaced(ctx context.Context, address, queue string) {
	for ctx.Err() == nil {
		if now, err := w.activeNode(ctx, queue); err != nil || now != address {
			return
		}
		wait(ctx, activeCheck)
	}
}

// delivered verifies the whole message, and records the delivery or a violation.
func (w *Workload) delivered(d historycheck.Delivery, m client.Message) {
	id, err := w.parse(m)
	if err != nil {
		w.history.AddBroken(historycheck.Violation{
			Rule: historycheck.RuleBody, Text: fmt.Sprintf("%s/%s sequence %d: %v", d.Queue, d.Sub, d.Sequence, err),
		})
		return
	}
	d.ID, d.At = id, w.history.Now()
	w.history.AddDelivery(d)
}

type producer struct {
	w        *Workload
	id       uint32
	pipeline *client.Producer
	rng      *rand.Rand
	room     chan struct{} // one token per message in flight
	answers  sync.WaitGroup
}

func (w *Workload) newProducer(ctx context.Context, id uint32) (*producer, error) {
	pipeline, err := w.client.NewProducer(ctx, client.ProducerOptions{})
	if err != nil {
		return nil, fmt.Errorf("workload: %w", err)
	}
	rng := rand.New(rand.NewPCG(w.opts.Seed, uint64(id)))
	return &producer{w: w, id: id, pipeline: pipeline, rng: rng, room: make(chan struct{}, w.opts.InFlight)}, nil
}

// run publishes until ctx is done. If waitForEach is set, it waits for each outcome before the next publish.
func (p *producer) run(ctx context.Context, waitForEach bool) {
	pace := time.NewTicker(time.Second / time.Duration(p.w.opts.PerSecond))
	defer pace.Stop()
	for n := uint64(1); ; n++ {
		select {
		case <-ctx.Done():
			return
		case <-pace.C:
		}
		select {
		case <-ctx.Done():
			return
		case p.room <- struct{}{}:
		}
		done := p.send(ctx, historycheck.ID{Producer: p.id, N: n})
		if waitForEach {
			select {
			case <-done:
			case <-ctx.Done():
			}
		}
	}
}

// send publishes one message. The returned channel is closed when the outcome is in the history, or when the message
// was not sent because ctx has ended.
func (p *producer) send(ctx context.Context, id historycheck.ID) <-chan struct{} {
	h := p.w.history
	record := historycheck.Publish{ID: id, Queue: p.w.queues[p.rng.IntN(len(p.w.queues))], Sent: h.Now()}
	m := p.w.message(id, p.size())
	record.Group = m.Group
	done := make(chan struct{})
	finish := func(r client.Receipt, err error) {
		record.Done, record.Sequence, record.LSN, record.Address = h.Now(), r.Sequence, r.LSN, r.Address
		record.Outcome = outcome(err)
		if err != nil {
			record.Error, record.Limit = err.Error(), errors.Is(err, client.ErrLimit)
		}
		h.AddPublish(record)
		<-p.room
		close(done)
	}
	pending := p.pipeline.PublishAsync(ctx, record.Queue, m)
	if err := pending.Err(); err != nil && ctx.Err() != nil && errors.Is(err, ctx.Err()) { // not sent: publishing ends
		<-p.room
		close(done)
		return done
	}
	p.answers.Go(func() { finish(pending.Wait(context.WithoutCancel(ctx))) })
	return done
}

// size returns a random body size: usually small, sometimes a few pages, rarely large.
func (p *producer) size() int {
	switch rng := p.rng.IntN(1000); {
	case rng < 3:
		return p.rng.IntN(p.w.opts.LargeBytes)
	case rng < 150:
		return p.rng.IntN(8 << 10)
	default:
		return p.rng.IntN(1 << 10)
	}
}

// outcome converts an error of a publish to an outcome. Only errors that guarantee that nothing was stored are
// rejections.
func outcome(err error) historycheck.Outcome {
	switch {
	case err == nil:
		return historycheck.Acked
	case errors.Is(err, client.ErrOutcomeUnknown):
		return historycheck.Unknown
	case errors.Is(err, client.ErrLimit), errors.Is(err, client.ErrQueueNotFound), errors.Is(err, client.ErrInvalid),
		errors.Is(err, client.ErrRefused):
		return historycheck.Refused
	default:
		return historycheck.Unknown
	}
}

// Finish stops publishing, waits for all responses, consumes all messages, and reads the final contents of the queues
// and both nodes. The pair must be in sync, and no process may be killed concurrently. Afterwards, the history is
// complete for Check. Cleanup removes the queues.
func (w *Workload) Finish(ctx context.Context) error {
	w.stopPublishing()
	w.publishing.Wait()
	for _, p := range w.producers {
		if err := p.pipeline.Flush(ctx); err != nil && ctx.Err() != nil {
			return fmt.Errorf("producer %d has messages without a response: %w", p.id, err)
		}
		p.answers.Wait() // the errors of publishes are in the history
	}
	if err := w.stopOthers(ctx); err != nil {
		return err
	}
	for _, q := range w.queues {
		if err := w.drain(ctx, q); err != nil {
			return err
		}
	}
	w.stopConsuming()
	w.consuming.Wait()
	if err := w.readEnd(ctx); err != nil {
		return err
	}
	if err := w.pair.WaitApplied(ctx); err != nil {
		return err
	}
	digests, err := w.pair.Digests(ctx)
	if err != nil {
		return err
	}
	w.history.Edit(func(h *historycheck.History) { h.Digests, h.FinalRead = digests, true })
	return nil
}

// drain waits until all consumers of a queue have acknowledged all messages.
func (w *Workload) drain(ctx context.Context, queue string) error {
	for {
		q, err := admin.New(w.client).GetQueue(ctx, queue)
		if err != nil {
			return fmt.Errorf("drain: %w", err)
		}
		if backlog(q) == 0 {
			break
		}
		if wait(ctx, pollInterval); ctx.Err() != nil {
			return fmt.Errorf("drain %s: %w; subscriptions: %+v", queue, ctx.Err(), q.Subscriptions)
		}
	}
	w.history.Edit(func(h *historycheck.History) {
		h.Drained = append(h.Drained, queue+"/"+SubRaw, queue+"/"+SubClient, queue+"/"+SubShared)
	})
	return nil
}

func backlog(q admin.Queue) uint64 {
	var n uint64
	for _, s := range q.Subscriptions {
		if s.Name != SubAudit {
			n += s.Backlog
		}
	}
	return n
}

func (w *Workload) readEnd(ctx context.Context) error {
	final, err := w.readFinal(ctx, w.kept())
	if err != nil {
		return err
	}
	w.history.Edit(func(h *historycheck.History) { h.Final = append(h.Final, final...) })
	if w.apps == nil {
		return nil
	}
	return w.apps.readEnd(ctx, func(ctx context.Context) ([]historycheck.Stored, error) {
		return w.readFinal(ctx, w.apps.queues())
	})
}

// readFinal browses all contents of the queues, which the audit subscription has retained.
func (w *Workload) readFinal(ctx context.Context, queues []string) (final []historycheck.Stored, err error) {
	for _, queue := range queues {
		for m, err := range w.client.Browse(ctx, queue, client.BrowseOptions{}) {
			if err != nil {
				return nil, fmt.Errorf("read the final content: %w", err)
			}
			id, err := w.parse(m.Message)
			if err != nil {
				w.history.AddBroken(historycheck.Violation{
					Rule: historycheck.RuleBody, Text: fmt.Sprintf("%s sequence %d at the end: %v", queue, m.Sequence, err),
				})
			}
			final = append(final, historycheck.Stored{Queue: queue, Sequence: m.Sequence, ID: id})
		}
	}
	return final, nil
}

// Cleanup deletes the queues, except the queue that applications create and delete, and closes the client. It is
// called after Finish.
func (w *Workload) Cleanup(ctx context.Context) error {
	var errs []error
	queues := w.kept()
	if w.apps != nil {
		queues = append(queues, w.apps.queues()...)
	}
	for _, q := range queues {
		_, err := admin.New(w.client).DeleteQueue(ctx, q, false)
		errs = append(errs, err)
	}
	if w.apps != nil {
		errs = append(errs, w.apps.close())
	}
	if w.features != nil {
		errs = append(errs, w.features.remove(ctx))
	}
	return errors.Join(append(errs, w.client.Close())...)
}

// Abort stops the workload immediately. The history is incomplete.
func (w *Workload) Abort() {
	w.stopPublishing()
	w.stopConsuming()
	if w.sideClients != nil {
		w.sideClients.end()
	}
	if w.apps != nil {
		_ = w.apps.close()
	}
	if w.features != nil {
		w.features.abort()
	}
	_ = w.client.Close()
	w.publishing.Wait()
	w.consuming.Wait()
}
