// SPDX-License-Identifier: Apache-2.0

package replication

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/store/crc"
	"github.com/lockstep-mq/lockstep/store/lsn"
	"github.com/lockstep-mq/lockstep/store/txn"
	"github.com/lockstep-mq/lockstep/store/wal"
)

// The frame of a transaction with referenced bodies equals that of the whole transaction. If a body changes between
// its checksum and its copy, the standby rejects the frame.
func TestQueueReferences(t *testing.T) {
	one, two := bytes.Repeat([]byte{1}, 5000), bytes.Repeat([]byte{2}, 200_000)
	item := Item{Payload: []byte("head and middle and end"), Refs: []txn.Ref{
		{At: 5, Data: one, Sum: crc.Of(one)}, {At: 15, Data: two, Sum: crc.Of(two)},
	}}
	whole := bytes.Join([][]byte{item.Payload[:5], one, item.Payload[5:15], two, item.Payload[15:]}, nil)
	q := newQueue(1, 1<<20, lsn.Position{})
	q.encode(wal.KindTxn, &item)
	q.encode(wal.KindTxn, &Item{Payload: whole})
	two[77] ^= 1
	q.encode(wal.KindTxn, &item)
	want, end := wal.AppendFrame(nil, lsn.Position{}, 1, wal.KindTxn, whole)
	var frames []byte
	for _, b := range q.take(nil) {
		frames = append(frames, b.frames...)
	}
	require.Equal(t, want, frames[:len(want)])
	require.Equal(t, crc.Of(whole), wal.PayloadChecksum(frames))
	prev := lsn.Position{}
	for range 2 {
		f, rest, err := wal.DecodeFrame(frames, prev)
		require.NoError(t, err)
		require.Equal(t, whole, f.Payload)
		frames, prev = rest, f.Pos
	}
	require.Equal(t, end.LSN+1, prev.LSN)
	_, err := verifyFrames(frames, prev)
	require.ErrorIs(t, err, ErrChecksum)
}
