// SPDX-License-Identifier: Apache-2.0

//go:build unix && deep

package hostile

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/client/admin"
	"github.com/lockstep-mq/lockstep/test/cluster"
)

const (
	// envFrozen makes the test binary a consumer: address of a node and queue, separated by a space.
	envFrozen = "LOCKSTEP_TEST_FROZEN"

	frozenRounds   = 50
	frozenParallel = 5
	frozenMessages = 10
	frozenDeadline = time.Second
)

// runFrozen consumes with handlers that never return: Run extends their messages until the process is stopped.
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

// A consumer process that is stopped loses its messages to another one within the acknowledgement deadline and a
// second, and none is lost. Until then, Run has extended them.
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
				took := freeze(t, p, k, active.Address, fmt.Sprintf("frozen-%d", i))
				mu.Lock()
				longest = max(longest, took)
				mu.Unlock()
			}
		})
	}
	running.Wait()
	t.Logf("%d rounds: the last message was redelivered after at most %v", frozenRounds, longest)
	assert.LessOrEqual(t, longest, frozenDeadline+time.Second)
}

// freeze stops a consumer process that holds all messages of a queue, and returns the time until another consumer has
// received them.
func freeze(t *testing.T, p *cluster.Pair, k *client.Client, address, queue string) time.Duration {
	ctx, cancel := context.WithTimeout(t.Context(), bound)
	defer cancel()
	a := admin.New(k)
	_, _, err := a.CreateQueue(ctx, queue, admin.CreateQueueOptions{Config: admin.QueueConfig{AckTimeout: frozenDeadline}})
	if !assert.NoError(t, err) {
		return 0
	}
	for i := range frozenMessages {
		_, err := k.Publish(ctx, queue, client.Message{Body: fmt.Append(nil, i)})
		assert.NoError(t, err)
	}
	frozen := exec.CommandContext(ctx, os.Args[0])
	frozen.Env = append(os.Environ(), envFrozen+"="+address+" "+queue)
	frozen.Stderr = os.Stderr
	if !assert.NoError(t, frozen.Start()) {
		return 0
	}
	defer func() {
		_ = frozen.Process.Kill()
		_ = frozen.Wait()
	}()
	inFlight := func() uint64 {
		q, err := a.GetQueue(ctx, queue)
		if !assert.NoError(t, err) {
			return 0
		}
		return q.Subscriptions[0].InFlight
	}
	for inFlight() < frozenMessages && ctx.Err() == nil {
		pause(ctx, 10*time.Millisecond)
	}
	pause(ctx, time.Duration(rand.Int64N(int64(3*frozenDeadline))))
	assert.EqualValues(t, frozenMessages, inFlight(), "Run has not extended the messages")
	assert.NoError(t, frozen.Process.Signal(syscall.SIGSTOP))
	stopped := time.Now()
	co, err := k.Consume(ctx, queue, client.ConsumerOptions{})
	if !assert.NoError(t, err) {
		return 0
	}
	defer func() { _ = co.Close() }()
	received := map[string]uint32{}
	var took time.Duration
	for len(received) < frozenMessages {
		d, err := co.Receive(ctx)
		if !assert.NoError(t, err, "%d messages of %s received", len(received), queue) {
			return 0
		}
		took = time.Since(stopped)
		received[string(d.Body)] = d.DeliveryCount
		assert.NoError(t, d.Ack())
	}
	for body, count := range received {
		assert.EqualValues(t, 1, count, "message %s of %s", body, queue)
	}
	assert.NoError(t, frozen.Process.Signal(syscall.SIGCONT))
	assert.NoError(t, co.Flush(ctx))
	q, err := a.GetQueue(ctx, queue)
	assert.NoError(t, err)
	assert.Zero(t, q.Messages)
	return took
}
