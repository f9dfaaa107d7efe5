// SPDX-License-Identifier: Apache-2.0

package wal

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/store/lsn"
)

func TestFrameRoundTrip(t *testing.T) {
	prev := lsn.Position{Term: 3, LSN: 41, Chain: 0xdeadbeef}
	for size := range 40 {
		want := payload(4, 1, size)
		b, pos := AppendFrame([]byte("before.."), prev, 4, KindTermStart, want)
		require.Len(t, b, 8+FrameBytes(size))
		require.Zero(t, len(b)%8)
		require.Equal(t, lsn.Position{Term: 4, LSN: 42, Chain: pos.Chain}, pos)
		f, rest, err := DecodeFrame(append(b, "rest"...)[8:], prev)
		require.NoError(t, err)
		require.Equal(t, "rest", string(rest))
		require.Equal(t, Frame{Pos: pos, Kind: KindTermStart, Payload: want}, f)
	}
}

// BeginFrame and EndFrame encode a frame like AppendFrame.
func TestFrameInPlace(t *testing.T) {
	first, pos := AppendFrame(nil, lsn.Position{}, 1, KindTxn, []byte("one"))
	want, wantPos := AppendFrame(first, pos, 1, KindTxn, []byte("two and more"))

	got, start := bytes.Clone(first), len(first)
	got = BeginFrame(got)
	got = append(got, "two "...)
	got = append(got, "and more"...)
	got, gotPos := EndFrame(got, start, pos, 1, KindTxn)
	require.Equal(t, want, got)
	require.Equal(t, wantPos, gotPos)
}

// DecodeFrame detects each flipped bit, including those of length, padding and reserved bytes.
func TestFrameDetectsEveryFlippedBit(t *testing.T) {
	prev := lsn.Position{Term: 1, LSN: 1, Chain: 5}
	b, _ := AppendFrame(nil, prev, 1, KindTxn, []byte("thirteen byte"))
	for bit := range len(b) * 8 {
		b[bit/8] ^= 1 << (bit % 8)
		_, _, err := DecodeFrame(b, prev)
		require.Error(t, err, "bit %d", bit)
		b[bit/8] ^= 1 << (bit % 8)
	}
	_, _, err := DecodeFrame(b, prev)
	require.NoError(t, err)
}

// DecodeFrame reports a truncated frame of any length.
func TestTruncatedFrame(t *testing.T) {
	b, _ := AppendFrame(nil, lsn.Position{}, 1, KindTxn, []byte("thirteen byte"))
	for n := range b {
		_, _, err := DecodeFrame(b[:n], lsn.Position{})
		require.ErrorIs(t, err, ErrShortFrame, "%d bytes", n)
	}
}

// DecodeFrame accepts a frame only after its predecessor: the checksum covers the frames before it.
func TestFrameChain(t *testing.T) {
	prev := lsn.Position{Term: 5, LSN: 9, Chain: 77}
	b, pos := AppendFrame(nil, prev, 5, KindTxn, []byte("x"))
	for _, other := range []lsn.Position{
		{},
		{Term: 5, LSN: 8, Chain: 77},
		{Term: 5, LSN: 10, Chain: 77},
		{Term: 5, LSN: 9, Chain: 78}, // the same LSN in another history
		{Term: 6, LSN: 9, Chain: 77}, // a higher term
	} {
		_, _, err := DecodeFrame(b, other)
		require.ErrorIs(t, err, ErrChain, other)
	}
	_, _, err := DecodeFrame(b, lsn.Position{Term: 4, LSN: 9, Chain: 77})
	require.NoError(t, err)

	other, otherPos := AppendFrame(nil, lsn.Position{Term: 5, LSN: 9, Chain: 78}, 5, KindTxn, []byte("x"))
	require.NotEqual(t, pos.Chain, otherPos.Chain)
	require.NotEqual(t, b, other)
}

func TestFrameLengthLimit(t *testing.T) {
	b, _ := AppendFrame(nil, lsn.Position{}, 1, KindTxn, nil)
	b[3] = 0xff
	_, _, err := DecodeFrame(b, lsn.Position{})
	require.ErrorIs(t, err, ErrBadFrame)
}

func TestFrameDoesNotAllocate(t *testing.T) {
	buf := make([]byte, 0, 1024)
	body := payload(1, 1, 500)
	require.Zero(t, testing.AllocsPerRun(100, func() {
		b, pos := AppendFrame(buf, lsn.Position{}, 1, KindTxn, body)
		if f, _, err := DecodeFrame(b, lsn.Position{}); err != nil || f.Pos != pos {
			t.Error("decode failed")
		}
	}))
}

// Kinds and sync modes have names. The error for an unknown mode lists the valid modes.
func TestKindAndModeNames(t *testing.T) {
	require.Equal(t, "term-start txn kind-9", KindTermStart.String()+" "+KindTxn.String()+" "+Kind(9).String())
	for _, m := range []SyncMode{SyncAlways, SyncInterval, SyncOff} {
		got, err := ParseSyncMode(m.String())
		require.NoError(t, err)
		require.Equal(t, m, got)
	}
	_, err := ParseSyncMode("sometimes")
	require.ErrorIs(t, err, ErrOptions)
	for _, m := range []SyncMode{SyncAlways, SyncInterval, SyncOff} {
		require.Contains(t, err.Error(), m.String())
	}
}

func FuzzDecodeFrame(f *testing.F) {
	good, _ := AppendFrame(nil, lsn.Position{Term: 1, LSN: 7, Chain: 9}, 1, KindTxn, []byte("hello"))
	f.Add(good, uint64(1), uint64(7), uint32(9))
	f.Add(good[:20], uint64(1), uint64(7), uint32(9))
	f.Add([]byte{}, uint64(0), uint64(0), uint32(0))
	f.Fuzz(func(t *testing.T, b []byte, term, record uint64, chain uint32) {
		prev := lsn.Position{Term: term, LSN: record, Chain: chain}
		frame, rest, err := DecodeFrame(b, prev)
		if err != nil {
			return
		}
		// An accepted frame is identical to the encoded one, except for the flags and the reserved bytes.
		again, pos := AppendFrame(nil, prev, frame.Pos.Term, frame.Kind, frame.Payload)
		if len(again) != len(b)-len(rest) {
			t.Fatalf("decoded %d bytes, encoded %d", len(b)-len(rest), len(again))
		}
		if b[13] == 0 && b[14] == 0 && b[15] == 0 && (pos != frame.Pos || !bytes.Equal(again, b[:len(again)])) {
			t.Fatalf("%x was decoded as %v and encoded as %x", b, frame, again)
		}
	})
}
