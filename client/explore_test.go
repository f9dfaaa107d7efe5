// SPDX-License-Identifier: Apache-2.0

package client_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/client/admin"
	"github.com/lockstep-mq/lockstep/test/tier"
)

var exploreDepth = flag.Int("explore-depth", 3, "TestExplore: number of attempts with faults")

// operation is an operation of the application that the explorer runs with faults.
type operation struct {
	name string
	// begin prepares the operation and returns the call, which may be retried after an error.
	begin func(ctx context.Context, c *client.Client) (call func(context.Context) error, err error)
	// once means that a second call is another request.
	once bool
	// parts returns how often each change of the operation was executed.
	parts func(w *world) []int
	// answers are moves after which the client knows that the attempt was not executed.
	answers []move
	// check returns a description of a wrong state, or "". Optional.
	check func(w *world) string
	// impossible are moves that cannot occur in the operation.
	impossible []move
}

func operations() []operation {
	answered := []move{refused, refusedNow, denied, notActive, blocked, evicted, switched, rehomed}
	published := func(w *world) []int { return []int{w.stored["q/a"]} }
	var order orderedPublishes
	// other moves end the stream and may concern any request
	inStream := []move{refused, refusedNow, blocked, evicted, rehomed}
	return []operation{
		{
			name: "Publish", once: true, parts: published, answers: inStream,
			begin: func(_ context.Context, c *client.Client) (func(context.Context) error, error) {
				return func(ctx context.Context) error {
					_, err := c.Publish(ctx, "q", message("a"))
					return err
				}, nil
			},
		},
		{
			name: "Producer", once: true, parts: published, answers: inStream,
			begin: func(ctx context.Context, c *client.Client) (func(context.Context) error, error) {
				p, err := c.NewProducer(ctx, client.ProducerOptions{ID: "mine", Epoch: 1})
				return func(ctx context.Context) error {
					_, err := p.Publish(ctx, "q", message("a"))
					return err
				}, err
			},
		},
		{
			name: "PublishAsync", once: true, parts: published, answers: inStream,
			begin: func(ctx context.Context, c *client.Client) (func(context.Context) error, error) {
				p, err := c.NewProducer(ctx, client.ProducerOptions{})
				return func(ctx context.Context) error {
					pending := p.PublishAsync(ctx, "q", message("a"))
					_ = p.Flush(ctx)
					return errors.Join(p.Close(), pending.Err())
				}, err
			},
		},
		{
			name: "Order", once: true, parts: func(w *world) []int { return []int{w.stored["q/c"]} },
			begin: order.begin, check: order.check,
		},
		{
			name: "Txn", answers: answered, parts: func(w *world) []int {
				acked := 0
				if w.acked[1] {
					acked = 1
				}
				return []int{w.stored["q/a"], w.stored["r/b"], acked}
			},
			begin: func(ctx context.Context, c *client.Client) (func(context.Context) error, error) {
				consumer, err := c.Consume(ctx, "in", client.ConsumerOptions{})
				if err != nil {
					return nil, err
				}
				d, err := consumer.Receive(ctx)
				if err != nil {
					return nil, err
				}
				txn := c.Begin().Publish("q", message("a")).Publish("r", message("b")).Ack(d)
				return func(ctx context.Context) error {
					_, err := txn.Commit(ctx)
					return err
				}, nil
			},
		},
		{
			name: "PurgeQueue", answers: answered, parts: func(w *world) []int { return []int{w.purged} },
			begin: func(_ context.Context, c *client.Client) (func(context.Context) error, error) {
				var r admin.Request
				return func(ctx context.Context) error {
					_, err := admin.New(c).As(&r).PurgeQueue(ctx, "q", "")
					return err
				}, nil
			},
		},
		{
			name: "AckSync", parts: func(w *world) []int {
				if w.acked[1] {
					return []int{1}
				}
				return []int{0}
			},
			begin: func(ctx context.Context, c *client.Client) (func(context.Context) error, error) {
				consumer, err := c.Consume(ctx, "in", client.ConsumerOptions{})
				if err != nil {
					return nil, err
				}
				d, err := consumer.Receive(ctx)
				return func(ctx context.Context) error { return d.AckSync(ctx) }, err
			},
			impossible: []move{refusedNow, evicted},
		},
	}
}

// TestExplore enumerates all outcomes of the attempts of one request at two sites, up to a depth. The default tier
// executes only a random third of the scripts with the full depth. The application retries after errors, or stops after
// any number of calls. Success means stored exactly once; an unknown outcome means at most once; after any other error
// nothing is ever stored. Transactions are atomic. No request is sent to a replica or a superseded primary. Deliveries
// are not acknowledged after a promotion with a loss. The queues move to another pair of a fleet and back; messages of
// one producer keep their order.
func TestExplore(t *testing.T) {
	depth := *exploreDepth
	if testing.Short() {
		depth--
	}
	for _, op := range operations() {
		t.Run(op.name, func(t *testing.T) {
			var fired [moves]int
			runs := 0
			rng := rand.New(rand.NewPCG(1, 1))
			script := make([]move, 0, depth)
			var walk func()
			walk = func() {
				if len(script) == depth && depth > 2 && rng.IntN(tier.Count(3, 1)) > 0 {
					return
				}
				for calls := 1; calls <= 3 && (calls == 1 || !op.once && calls <= len(script)+1); calls++ {
					for _, early := range []bool{false, true} {
						explore(t, op, script, calls, early, &fired)
						runs++
					}
				}
				if len(script) == depth {
					return
				}
				for m := range moves {
					if op.may(m) {
						script = append(script, m)
						walk()
						script = script[:len(script)-1]
					}
				}
			}
			walk()
			t.Logf("%d runs", runs)
			for m := range moves {
				if op.may(m) {
					require.Positive(t, fired[m], "%s did not occur", m)
				}
			}
		})
	}
}

// A node refuses a publish because of the owner of its queue. Then the stream ends, and the queue returns to the node.
// The following publishes, which were sent on the same stream, are not executed before the refused one.
func TestQueueReturnsAfterRefusal(t *testing.T) {
	for _, op := range operations() {
		if op.name == "Order" {
			explore(t, op, []move{never, rehomed, rehomedNever}, 1, false, new([moves]int))
		}
	}
}

func (op *operation) may(m move) bool { return !slices.Contains(op.impossible, m) }

// allAnswered reports whether every attempt had a definite response.
func (op *operation) allAnswered(done []move) bool {
	return len(op.answers) > 0 && !slices.ContainsFunc(done,
		func(m move) bool { return !slices.Contains(op.answers, m) })
}

// explore executes one script with at most the given number of calls.
func explore(t *testing.T, op operation, script []move, calls int, early bool, fired *[moves]int) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(early, append([]move(nil), script...))
		c, err := client.OpenWith(t.Context(), client.Options{Addresses: worldAddresses(), DialOptions: w.options()})
		require.NoError(t, err)
		ctx, cancel := w.call(t.Context())
		call, err := op.begin(ctx, c)
		require.NoError(t, err)
		cancel()
		var results []string
		for range calls {
			ctx, cancel := w.call(t.Context())
			ctx, expire := context.WithTimeout(ctx, time.Minute)
			err = call(ctx)
			expire()
			cancel()
			results = append(results, fmt.Sprint(err))
			if err == nil {
				break
			}
		}
		require.NoError(t, c.Close())
		synctest.Wait()
		w.end()
		parts := op.parts(w)
		wrong := checkOutcome(parts, err)
		if op.check != nil && wrong == "" {
			wrong = op.check(w)
		}
		if done := script[:len(script)-len(w.script)]; wrong == "" && errors.Is(err, client.ErrOutcomeUnknown) &&
			op.allAnswered(done) {
			wrong = "outcome unknown although every attempt received a response"
		}
		if w.stale > 0 {
			wrong = "request sent to a replica or a superseded primary"
		}
		if w.reused > 0 {
			wrong = "acknowledged a message of an earlier epoch"
		}
		if wrong != "" {
			t.Fatalf("%s: %s\nmoves: %v, early: %v\nresults: %s\nparts: %v", op.name, wrong, script, early,
				strings.Join(results, "\n      "), parts)
		}
		for m := range moves {
			fired[m] += w.fired[m]
		}
	})
}

// orderedPublishes publishes three messages with one producer. The outcome of the last one is checked as that of other
// operations.
type orderedPublishes struct{ pending []*client.Pending }

func (o *orderedPublishes) begin(ctx context.Context, c *client.Client) (func(context.Context) error, error) {
	o.pending = nil
	p, err := c.NewProducer(ctx, client.ProducerOptions{})
	return func(ctx context.Context) error {
		for _, body := range []string{"a", "b", "c"} {
			o.pending = append(o.pending, p.PublishAsync(ctx, "q", client.Message{Body: []byte(body)}))
			synctest.Wait() // separate requests
		}
		_ = p.Flush(ctx)
		return errors.Join(p.Close(), o.pending[2].Err())
	}, err
}

// check returns a description of acknowledged messages that are not stored once, in the order in which they were sent.
func (o *orderedPublishes) check(w *world) string {
	var want, got []string
	for i, body := range []string{"q/a", "q/b", "q/c"} {
		if o.pending[i].Err() == nil {
			want = append(want, body)
		}
	}
	for _, m := range w.order {
		if slices.Contains(want, m) {
			got = append(got, m)
		}
	}
	if !slices.Equal(want, got) {
		return fmt.Sprintf("acknowledged %v, stored %v", want, w.order)
	}
	return ""
}

// checkOutcome compares the last result of the application with the final state. It returns a description of the
// contradiction, if any.
func checkOutcome(parts []int, err error) string {
	for _, n := range parts {
		if n != parts[0] {
			return "partially stored"
		}
	}
	switch n := parts[0]; {
	case n > 1:
		return "stored more than once"
	case err == nil && n != 1:
		return "acknowledged but not stored"
	case err != nil && !errors.Is(err, client.ErrOutcomeUnknown) && n != 0:
		return "rejected but stored"
	default:
		return ""
	}
}
