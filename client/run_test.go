// SPDX-License-Identifier: Apache-2.0

package client_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/client"
)

// The result of a handler answers its delivery, unless the handler has answered it.
func TestRunAnswers(t *testing.T) { synctest.Test(t, testRunAnswers) }

func testRunAnswers(t *testing.T) {
	p := newFakePair(t)
	c := p.client(client.Options{})
	fill(t, c, 5)
	co, err := c.Consume(soon(t), "q", client.ConsumerOptions{})
	require.NoError(t, err)
	failed := errors.New("failure of the test")
	var mu sync.Mutex
	deliveries := map[uint64]int{}
	ctx, stop := context.WithCancel(soon(t))
	err = co.Run(ctx, func(_ context.Context, d *client.Delivery) error {
		mu.Lock()
		defer mu.Unlock()
		deliveries[d.Sequence]++
		done := 0
		for _, n := range deliveries {
			done += n
		}
		if done == 6 {
			stop()
		}
		switch {
		case d.Sequence == 1:
			return client.Reject(failed)
		case d.Sequence == 2 && deliveries[2] == 1:
			return fmt.Errorf("%w, once", failed)
		case d.Sequence == 3:
			require.NoError(t, d.Ack())
			require.ErrorIs(t, d.Nack(), client.ErrInvalid)
			return failed
		}
		return nil
	}, 3)
	require.NoError(t, err)
	require.NoError(t, co.Flush(soon(t)))
	require.Equal(t, map[uint64]int{1: 1, 2: 2, 3: 1, 4: 1, 5: 1}, deliveries)
	require.Equal(t, 5, p.ackedCount("q"), "includes the rejected message")
	p.mu.Lock()
	require.Equal(t, []uint64{1}, p.rejected["q"])
	p.mu.Unlock()
	require.ErrorIs(t, client.Reject(failed), failed)
	require.EqualError(t, client.Reject(nil), "message rejected")
}

// Run returns after its handlers have returned, and without an error if the consumer was closed.
func TestRunEnds(t *testing.T) { synctest.Test(t, testRunEnds) }

func testRunEnds(t *testing.T) {
	p := newFakePair(t)
	c := p.client(client.Options{})
	fill(t, c, 4)
	co, err := c.Consume(soon(t), "q", client.ConsumerOptions{})
	require.NoError(t, err)
	var mu sync.Mutex
	var begun, ended []uint64
	release := make(chan struct{})
	result := make(chan error, 1)
	go func() {
		result <- co.Run(t.Context(), func(_ context.Context, d *client.Delivery) error {
			mu.Lock()
			begun = append(begun, d.Sequence)
			mu.Unlock()
			<-release
			mu.Lock()
			ended = append(ended, d.Sequence)
			mu.Unlock()
			return nil
		}, 2)
	}()
	synctest.Wait()
	require.NoError(t, co.Close())
	synctest.Wait()
	require.Empty(t, result)
	close(release)
	require.NoError(t, <-result)
	slices.Sort(begun)
	require.Equal(t, []uint64{1, 2}, begun)
	require.ElementsMatch(t, begun, ended)
}
