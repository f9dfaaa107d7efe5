// SPDX-License-Identifier: Apache-2.0

package wire_test

import (
	"bytes"
	"io"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/amqp/wire"
)

// Whole returns true exactly if Next does not read.
func TestWhole(t *testing.T) {
	var stream []byte
	for _, n := range []int{0, 1, 300, 20_000, 5, 16 << 10, 40} {
		stream = wire.AppendFrame(stream, 0, &wire.Transfer{Handle: 1}, make([]byte, n))
	}
	for _, step := range []int{1, 7, 100, 4096, len(stream)} {
		reads := 0
		r := wire.NewReader(readerFunc(func(b []byte) (int, error) {
			reads++
			if len(stream) == 0 {
				return 0, io.EOF
			}
			n := copy(b, stream[:min(step, len(stream))])
			stream = stream[n:]
			return n, nil
		}), 1<<20)
		all := bytes.Clone(stream)
		require.False(t, r.Whole(), "nothing was read")
		var f wire.Frame
		for frames := 0; ; frames++ {
			whole, before := r.Whole(), reads
			err := r.Next(&f)
			if err != nil {
				require.ErrorIs(t, err, io.EOF)
				require.Equal(t, 7, frames)
				require.False(t, whole)
				break
			}
			require.Equal(t, reads == before, whole, "frame %d in steps of %d", frames, step)
		}
		stream = all
	}
	broken := wire.NewReader(bytes.NewReader([]byte{0, 0, 0, 3, 2, 0, 0, 0, 0, 0, 0, 1, 2, 0, 0, 0}), 1<<20)
	err := broken.Next(new(wire.Frame))
	var e *wire.Error
	require.ErrorAs(t, err, &e)
	require.Contains(t, e.Description, "too short")
}

type readerFunc func(b []byte) (int, error)

func (f readerFunc) Read(b []byte) (int, error) { return f(b) }
