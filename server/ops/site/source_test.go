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
	// No record is written at the time of a response: the response could contain it or not.
	const records, interval = 100, minInterval/10 + minInterval/1000
	for range records {
		p.write()
		pause(interval)
	}
	pause(time.Second)
	synctest.Wait()
	all := 0
	require.Len(t, sent, 1+records/10)
	for len(sent) > 0 {
		all += <-sent
	}
	require.Equal(t, records, all)
	cancel()
	require.ErrorIs(t, <-ended, context.Canceled)
	require.Equal(t, p.store.Applied(), at)
}

// A response contains all applied records, even if the log was read before some of them were applied or written.
func TestSourceSendsAllApplied(t *testing.T) { synctest.Test(t, testSourceSendsAllApplied) }

func testSourceSendsAllApplied(t *testing.T) {
	p := newPair(t)
	at := p.store.Applied()
	s := &source{store: p.store, read: at.LSN, sent: at}
	var err error
	s.compress, err = newCompressor()
	require.NoError(t, err)
	s.reader, err = p.store.ReadLog(at.LSN + 1)
	require.NoError(t, err)
	p.write()
	p.write()
	require.NoError(t, s.readMore())
	p.write()
	require.NoError(t, s.readMore())
	require.NoError(t, s.readMore(), "end of the log")
	p.write()
	resp, err := s.next()
	require.NoError(t, err)
	last, n, err := readFrames(resp, at)
	require.NoError(t, err)
	require.Equal(t, 4, n)
	require.Equal(t, p.store.Applied(), last)
	resp, err = s.next()
	require.NoError(t, err)
	require.Empty(t, resp.GetFrames())
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
