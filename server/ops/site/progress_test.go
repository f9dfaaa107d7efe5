// SPDX-License-Identifier: Apache-2.0

package site

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/store/lsn"
)

// The lag is the age of the oldest missing record. During an outage, the replica receives no position from the
// primary. The lag after the outage includes its duration.
func TestLag(t *testing.T) {
	var p progress
	start := time.Unix(1_700_000_000, 0)
	at := func(s int) time.Time { return start.Add(time.Duration(s) * time.Second) }
	receive := func(end uint64, s int) { p.heard(lsn.Position{Term: 1, LSN: end}, at(s), 0) }
	lag := func() time.Duration { return p.now(start).Lag }
	p.reset(lsn.Position{Term: 1, LSN: 10}, 1)
	receive(10, 0)
	require.Zero(t, lag())
	receive(15, 1)
	require.Zero(t, lag(), "as of the last response")
	receive(20, 3)
	require.Equal(t, 2*time.Second, lag())
	p.reached(15, 0)
	require.Zero(t, lag(), "the record at 20 was first seen in the last response")
	p.reached(20, 0)
	receive(20, 4)

	receive(30, 64) // the first position after an outage of a minute
	require.Equal(t, time.Minute, lag())
	require.Equal(t, uint64(10), p.now(start).LagRecords)
	receive(40, 65)
	p.reached(30, 0)
	require.Zero(t, lag())
	p.reached(40, 0)
	require.Zero(t, p.now(start).LagRecords)

	receive(50, 70)
	p.reset(lsn.Position{Term: 2, LSN: 5}, 2)
	require.Zero(t, p.now(start).HeardAt, "the earlier position is of the log of another primary")
	receive(6, 1000)
	require.Zero(t, lag())
	require.Equal(t, uint64(1), p.now(start).LagRecords)
}
