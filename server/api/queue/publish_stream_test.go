// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/replication"
	"github.com/lockstep-mq/lockstep/server/api/apierror"
	"github.com/lockstep-mq/lockstep/store/txn"
)

// After an error that concerns the node, later requests of the stream are not submitted, even before the response
// with the error is sent. An error that concerns only its request has no such effect.
func TestStreamStopsAfterNodeError(t *testing.T) {
	for name, c := range map[string]struct {
		err    error
		broken bool
	}{
		"committed":  {nil, false},
		"blocked":    {replication.ErrBlocked, true},
		"not active": {replication.ErrNotActive, true},
		"unknown":    {replication.ErrOutcomeUnknown, true},
		"invalid":    {apierror.ErrInvalid, false},
		"joined":     {errors.Join(apierror.ErrInvalid), false},
	} {
		t.Run(name, func(t *testing.T) {
			p := &publishStream{}
			call := &streamCall{stream: p, done: make(chan replication.CommitResult, 1)}
			call.end(&txn.Result{}, c.err)
			require.Equal(t, c.broken, p.broken.Load())
			require.ErrorIs(t, (<-call.done).Err, c.err)
		})
	}
}

// After a request was refused in the log because its queue is fenced, later requests of the stream are refused too,
// until the client resumes the queue.
func TestFencedQueueStaysRefused(t *testing.T) {
	p := &publishStream{server: &Service{}}
	require.NoError(t, p.refusedFor("q"))
	call := &streamCall{stream: p, queue: "q", done: make(chan replication.CommitResult, 1)}
	call.end(&txn.Result{Code: txn.ErrMoved}, nil)
	require.ErrorIs(t, p.refusedFor("q"), txn.ErrMoved)
	require.True(t, apierror.ConcernsOwner(p.refusedFor("q")))
	require.NoError(t, p.refusedFor("other"))
	p.fenced.remove("q")
	require.NoError(t, p.refusedFor("q"))
}
