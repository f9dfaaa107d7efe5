// SPDX-License-Identifier: Apache-2.0

package wire_test

import (
	"bytes"
	"io"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/amqp/wire"
)

// The Reader uses large reads while much data arrives, and small reads again when little data arrives.
func TestReadAhead(t *testing.T) {
	var stream []byte
	for range 100 {
		stream = wire.AppendFrame(stream, 0, &wire.Transfer{Handle: 1}, make([]byte, 15_000))
	}
	many := len(stream)
	for range 2000 {
		stream = wire.AppendFrame(stream, 0, &wire.Transfer{Handle: 1}, make([]byte, 10))
	}
	var room []int
	r := wire.NewReader(readerFunc(func(b []byte) (int, error) {
		room = append(room, len(b))
		if len(stream) == 0 {
			return 0, io.EOF
		}
		limit := len(b)
		if many <= 0 {
			limit = min(limit, 300)
		}
		n := copy(b[:limit], stream)
		stream, many = stream[n:], many-n
		return n, nil
	}), 128<<10)
	var f wire.Frame
	require.NoError(t, r.Next(&f))
	require.Equal(t, []int{16 << 10}, room, "the first read of a connection")
	for range 99 {
		require.NoError(t, r.Next(&f))
		require.Len(t, f.Payload, 15_000)
	}
	require.Less(t, len(room), 20, "reads of 100 frames")
	for range 2000 {
		require.NoError(t, r.Next(&f))
	}
	require.ErrorIs(t, r.Next(&f), io.EOF)
	require.LessOrEqual(t, room[len(room)-1], 16<<10, "the memory is released")
}

// Frames are independent of the sizes of the reads, below and above readAhead.
func TestReadInPieces(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	var stream []byte
	var payloads [][]byte
	for range 300 {
		n := random.IntN(40)
		switch random.IntN(6) {
		case 0:
			n = random.IntN(20_000)
		case 1:
			n = random.IntN(100_000)
		}
		p := make([]byte, n)
		for i := range p {
			p[i] = byte(random.Uint32())
		}
		payloads = append(payloads, p)
		stream = wire.AppendFrame(stream, 0, &wire.Transfer{Handle: 1}, p)
	}
	for _, most := range []int{1, 50, 5000, 16 << 10, 60_000, len(stream)} {
		left := stream
		r := wire.NewReader(readerFunc(func(b []byte) (int, error) {
			n := copy(b, left[:min(len(left), 1+random.IntN(most))])
			if left = left[n:]; len(left) == 0 {
				return n, io.EOF // with the last bytes
			}
			return n, nil
		}), 128<<10)
		var f wire.Frame
		for i, p := range payloads {
			require.NoError(t, r.Next(&f))
			require.True(t, bytes.Equal(p, f.Payload), "frame %d in pieces of up to %d bytes", i, most)
		}
		require.Equal(t, io.EOF, r.Next(&f))
	}
	cut := wire.NewReader(bytes.NewReader(stream[:len(stream)-1]), 128<<10)
	var err error
	for f := new(wire.Frame); err == nil; {
		err = cut.Next(f)
	}
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)
	idle := wire.NewReader(readerFunc(func([]byte) (int, error) { return 0, nil }), 128<<10)
	require.ErrorIs(t, idle.Next(new(wire.Frame)), io.ErrNoProgress)
}
