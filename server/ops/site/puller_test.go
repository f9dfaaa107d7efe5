// SPDX-License-Identifier: Apache-2.0

package site

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/store/lsn"
	"github.com/lockstep-mq/lockstep/store/queue"
	"github.com/lockstep-mq/lockstep/store/wal"
)

// records returns a response with n records after a position, and the position of the last record. The records
// contain no transactions.
func records(after lsn.Position, n int) (*pb.PullLogResponse, lsn.Position) {
	resp := &pb.PullLogResponse{}
	for range n {
		resp.Frames, after = wal.AppendFrame(resp.Frames, after, 1, wal.KindTermStart, nil)
	}
	return resp, after
}

func testPuller(t *testing.T) *puller {
	t.Helper()
	p, err := newPuller(nil, &progress{}, &queue.SiteState{}, lsn.Position{})
	require.NoError(t, err)
	t.Cleanup(p.decoder.Close)
	return p
}

// A hold stops the puller within a response, after the last record that was submitted before. Heartbeats are
// still processed.
func TestHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := testPuller(t)
		first, at := records(lsn.Position{}, 3)
		require.NoError(t, p.take(t.Context(), first))
		p.hold()
		require.NoError(t, p.take(t.Context(), &pb.PullLogResponse{}))
		second, _ := records(at, 4)
		taken := make(chan error, 1)
		go func() { taken <- p.take(t.Context(), second) }()
		for _, limit := range []uint64{3, 5} {
			p.setLimit(limit)
			synctest.Wait()
			require.Empty(t, taken)
			seen, err := p.await(t.Context(), limit)
			require.NoError(t, err)
			require.Equal(t, limit, seen.LSN)
		}
		p.setLimit(noLimit)
		require.NoError(t, <-taken)
		seen, err := p.await(t.Context(), 7)
		require.NoError(t, err)
		require.Equal(t, uint64(7), seen.LSN)
	})
}

// A hold ends when the stream ends, and at a takeover.
func TestHoldEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := testPuller(t)
		p.hold()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		resp, at := records(lsn.Position{}, 2)
		require.ErrorIs(t, p.take(ctx, resp), context.DeadlineExceeded)
		taken := make(chan error, 1)
		go func() { taken <- p.take(t.Context(), resp) }()
		synctest.Wait()
		require.Empty(t, taken)
		require.NoError(t, p.awaitRecord(t.Context(), at))
		require.NoError(t, <-taken)
		require.ErrorIs(t, p.awaitRecord(t.Context(), lsn.Position{Term: 1, LSN: at.LSN, Chain: 9}), ErrDiverged)
	})
}

// await returns errEnded when the stream has ended, unless the record was received.
func TestAwaitEnd(t *testing.T) {
	p := testPuller(t)
	resp, _ := records(lsn.Position{}, 2)
	require.NoError(t, p.take(t.Context(), resp))
	p.ended = true
	_, err := p.await(t.Context(), 2)
	require.NoError(t, err)
	_, err = p.await(t.Context(), 3)
	require.ErrorIs(t, err, errEnded)
}
