// SPDX-License-Identifier: Apache-2.0

//go:build unix && deep

package hostile

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/client/admin"
)

const (
	// envFrozen is the environment variable that makes the test binary a consumer. Its value is the address of a node
	// and a queue, separated by a space.
	envFrozen = "LOCKSTEP_TEST_FROZEN"

	frozenRounds   = 50
	frozenParallel = 5
	frozenMessages = 10
	frozenDeadline = time.Second
)

// runFrozen consumes with handlers that never return. Run extends the deadlines of their messages until the process is
// stopped.
func runFrozen(text string) error {
	address, queue, _ := strings.Cut(text, " ")
	c, err := client.OpenWith(context.Background(), client.Options{
		Addresses:   []string{address},
		DialOptions: []grpc.DialOption{grpc.WithTransportCredentials(insecure.NewCredentials())},
	})
	if err != nil {
		return err
	}
	co, err := c.Consume(context.Background(), queue, client.ConsumerOptions{})
	if err != nil {
		return err
	}
	return co.Run(context.Background(), func(context.Context, *client.Delivery) error { select {} }, 3)
}

// When a consumer process is stopped (SIGSTOP), its messages are redelivered to another consumer within the
// acknowledgement deadline and a second, and none is lost. Before the stop, Run extends the deadlines of the
// messages.
func TestFrozenConsumer(t *testing.T) {
	p, active, _, _ := victim(t, nil)
	k, err := p.NewClient(t.Context())
	require.NoError(t, err)
	defer func() { _ = k.Close() }()
	rounds := make(chan int, frozenRounds)
	for i := range frozenRounds {
		rounds <- i
	}
	close(rounds)
	var mu sync.Mutex
	var longest time.Duration
	var running sync.WaitGroup
	for range frozenParallel {
		running.Go(func() {
			for i := range rounds {
				if t.Failed() {
					return
				}
				took, err := freeze(t.Context(), k, active.Address, fmt.Sprintf("frozen-%d", i))
				if err != nil {
					t.Errorf("round %d: %v", i, err)
				}
				mu.Lock()
				longest = max(longest, took)
				mu.Unlock()
			}
		})
	}
	running.Wait()
	t.Logf("%d rounds: the last message was redelivered after at most %v", frozenRounds, longest)
	require.LessOrEqual(t, longest, frozenDeadline+time.Second)
}

// freeze stops a consumer process with all messages of a queue in flight, and returns the time until another consumer
// has received them.
func freeze(ctx context.Context, k *client.Client, address, queue string) (took time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	a := admin.New(k)
	config := admin.QueueConfig{AckTimeout: frozenDeadline}
	if _, _, err := a.CreateQueue(ctx, queue, admin.CreateQueueOptions{Config: config}); err != nil {
		return 0, err
	}
	for i := range frozenMessages {
		if _, err := k.Publish(ctx, queue, client.Message{Body: fmt.Append(nil, i)}); err != nil {
			return 0, err
		}
	}
	frozen := exec.CommandContext(ctx, os.Args[0])
	frozen.Env = append(os.Environ(), envFrozen+"="+address+" "+queue)
	frozen.Stderr = os.Stderr
	if err := frozen.Start(); err != nil {
		return 0, err
	}
	defer func() {
		_ = frozen.Process.Kill()
		_ = frozen.Wait()
	}()
	for held := uint64(0); held < frozenMessages; pause(ctx, 10*time.Millisecond) {
		q, err := a.GetQueue(ctx, queue)
		if err != nil {
			return 0, err
		}
		held = q.Subscriptions[0].InFlight
	}
	pause(ctx, time.Duration(rand.Int64N(int64(3*frozenDeadline))))
	if err := frozen.Process.Signal(syscall.SIGSTOP); err != nil {
		return 0, err
	}
	stopped := time.Now()
	co, err := k.Consume(ctx, queue, client.ConsumerOptions{})
	if err != nil {
		return 0, err
	}
	defer func() { _ = co.Close() }()
	for received := map[string]bool{}; len(received) < frozenMessages; {
		d, err := co.Receive(ctx)
		if err != nil {
			return 0, fmt.Errorf("%d messages received: %w", len(received), err)
		}
		took = time.Since(stopped)
		received[string(d.Body)] = true
		if d.DeliveryCount != 1 {
			return 0, fmt.Errorf("message %s has delivery count %d: Run has not extended its deadline", d.Body, d.DeliveryCount)
		}
		if err := d.Ack(); err != nil {
			return 0, err
		}
	}
	if err := errors.Join(frozen.Process.Signal(syscall.SIGCONT), co.Flush(ctx)); err != nil {
		return 0, err
	}
	q, err := a.GetQueue(ctx, queue)
	if err == nil && q.Messages > 0 {
		err = fmt.Errorf("%d messages remain", q.Messages)
	}
	return took, err
}
