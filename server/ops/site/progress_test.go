// SPDX-License-Identifier: Apache-2.0

package site

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/store/lsn"
)

// The lag is the age of the oldest missing record at the last response. During an outage, the replica receives no
// position from the primary.
func TestLag(t *testing.T) {
	var p progress
	start := time.Unix(1_700_000_000, 0)
	at := func(s int) time.Time { return start.Add(time.Duration(s) * time.Second) }
	heard := func(end uint64, s int) { p.heard(lsn.Position{Term: 1, LSN: end}, at(s), 0) }
	lag := func() time.Duration { return p.now(start).Lag }
	p.reset(lsn.Position{Term: 1, LSN: 10}, 1)
	heard(10, 0)
	require.Zero(t, lag())
	p.submitted(15, at(1), at(2))
	heard(15, 3)
	require.Equal(t, 2*time.Second, lag())
	p.submitted(20, at(3), at(4))
	heard(25, 6)
	require.Equal(t, 5*time.Second, lag())
	p.reached(15, 0)
	require.Equal(t, 3*time.Second, lag())
	p.reached(20, 0)
	require.Equal(t, 2*time.Second, lag(), "records 21 to 25 were not received, and are not older than record 20")
	require.Equal(t, uint64(5), p.now(start).LagRecords)
	p.submitted(25, at(5), at(5))
	p.reached(25, 0)
	require.Zero(t, lag())

	p.submitted(30, at(64), at(65)) // after an outage
	heard(30, 66)
	require.Equal(t, 2*time.Second, lag())
	p.reset(lsn.Position{Term: 1, LSN: 25}, 1) // the stream ended before record 26 was applied
	require.Equal(t, 2*time.Second, lag())
	p.submitted(30, at(64), at(65))
	p.reached(30, 0)
	require.Zero(t, p.now(start).LagRecords)

	heard(30, 1000)
	heard(31, 1001) // the record was committed after the primary had read its log for this response
	require.Equal(t, time.Second, lag())

	heard(50, 1070)
	p.reset(lsn.Position{Term: 2, LSN: 5}, 2)
	require.Zero(t, p.now(start).HeardAt, "the earlier position is of the log of another primary")
	heard(6, 2000)
	require.Zero(t, lag(), "no record was received")
	require.Equal(t, uint64(1), p.now(start).LagRecords)
}

// A node of the replica that has just started determines the lag from the records that it receives.
func TestLagAfterStart(t *testing.T) { synctest.Test(t, testLagAfterStart) }

func testLagAfterStart(t *testing.T) {
	primary, replica, _ := twoPairs(t)
	pause(24 * time.Hour) // idle
	at := primary.store.Applied()
	primary.write()
	first := primary.framesAfter(at)
	at = primary.store.Applied()
	for range 9 {
		pause(time.Minute)
		primary.write()
	}
	rest := primary.framesAfter(at)
	replica.m.progress = progress{} // as in a new process
	pull := replica.pull()
	for _, resp := range []*pb.PullLogResponse{first, rest} {
		resp.End, resp.Now = positionToProto(primary.store.Applied()), timestamppb.Now()
	}
	require.NoError(t, pull.take(t.Context(), first))
	synctest.Wait()
	require.Equal(t, 9*time.Minute, replica.m.progress.now(time.Now()).Lag)
	require.NoError(t, pull.take(t.Context(), rest))
	synctest.Wait()
	require.Zero(t, replica.m.progress.now(time.Now()).Lag)
}
