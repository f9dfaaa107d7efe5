// SPDX-License-Identifier: Apache-2.0

package site

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/store/lsn"
	"github.com/lockstep-mq/lockstep/store/txn"
	"github.com/lockstep-mq/lockstep/store/wal"
)

// A record after a pause is sent immediately. Records in a rapid sequence are sent together.
func TestSourceCollects(t *testing.T) { synctest.Test(t, testSourceCollects) }

func testSourceCollects(t *testing.T) {
	p := newPair(t)
	p.change(txn.SiteChange{Action: txn.SiteStart, Lineage: uuid.Max})
	at := p.store.Applied()
	ctx, cancel := context.WithCancel(t.Context())
	sent, ended := make(chan int, 1000), make(chan error)
	go func() {
		ended <- p.m.serveLog(ctx, &pb.PullLogRequest{Site: "replica", After: positionToProto(at)},
			func(resp *pb.PullLogResponse) error {
				last, n, err := readFrames(resp, at)
				if n > 0 {
					sent <- n
				}
				at = last
				return err
			})
	}()
	for range 3 {
		pause(time.Second)
		began := time.Now()
		p.write()
		require.Equal(t, 1, <-sent)
		require.Zero(t, time.Since(began))
	}
	pause(time.Second)
	const records = 100
	for range records {
		p.write()
		pause(minInterval / 10)
	}
	pause(time.Second)
	synctest.Wait()
	all := 0
	require.InDelta(t, records/10+1, len(sent), 1)
	for len(sent) > 0 {
		all += <-sent
	}
	require.Equal(t, records, all)
	cancel()
	require.ErrorIs(t, <-ended, context.Canceled)
	require.Equal(t, p.store.Applied(), at)
}

func pause(d time.Duration) { <-time.NewTimer(d).C }

// readFrames returns the position of the last record in a response after a position, and the number of its records.
func readFrames(resp *pb.PullLogResponse, at lsn.Position) (last lsn.Position, n int, err error) {
	d, err := newDecompressor()
	if err != nil {
		return at, 0, err
	}
	defer d.Close()
	frames, err := decompress(d, resp.GetFrames(), resp.GetUncompressedBytes())
	for ; err == nil && len(frames) > 0; n++ {
		var f wal.Frame
		f, frames, err = wal.DecodeFrame(frames, at)
		at = f.Pos
	}
	return at, n, err
}
