// SPDX-License-Identifier: Apache-2.0

package txn

import (
	"encoding/hex"
	"maps"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

var (
	someImport = []ImportQueue{{Name: "a", Source: 3}, {Name: "b{1}", Source: 300, Prioritized: true}}
	somePairs  = []StatePair{{Key: []byte("k"), Value: []byte("v")}, {Key: []byte("l"), Value: []byte{}}}
)

// someMoves returns operations of all kinds by their encoding.
func someMoves() map[string]func(b *Builder) {
	rec, err := AppendMessage(nil, 1, nil, nil, []byte("x"))
	if err != nil {
		panic(err)
	}
	encoded := hex.EncodeToString(rec)
	return map[string]func(b *Builder){
		"1e" + "0d000000" + "ac02" + "06706169722d32" + "02" + "03" + "a902": func(b *Builder) {
			b.Fence(300, "pair-2", []uint64{3, 300})
		},
		"1f" + "02000000" + "ac02": func(b *Builder) { b.Unfence(300) },
		"20" + "02000000" + "ac02": func(b *Builder) { b.DropMoved(300) },
		"21" + "16000000" + "ac02" + "06706169722d31" + "02" + "016103" + "00" + "04627b317da902" + "01": func(b *Builder) {
			b.ImportBegin(300, "pair-1", someImport)
		},
		"22" + "27000000" + "07" + "ac02" + "05" + "02000000" + "09" + encoded + "ac02" + encoded: func(b *Builder) {
			b.BeginImport(7, 300, 5)
			b.Import(9, rec)
			b.Import(309, rec)
			b.EndImport()
		},
		"23" + "0f000000" + "07" + "ac02" + "026161" + "00" + "02" + "016b0176" + "016c00": func(b *Builder) {
			b.ImportState(7, 300, []byte("aa"), somePairs, false)
		},
		"24" + "02000000" + "ac02": func(b *Builder) { b.TakeMoved(300) },
		"25" + "02000000" + "ac02": func(b *Builder) { b.CancelImport(300) },
		"26" + "02000000" + "ac02": func(b *Builder) { b.ForgetMove(300) },
	}
}

// The operations of a move survive a round trip, and their encoding must not change.
func TestMoveOperations(t *testing.T) {
	for want, fill := range someMoves() {
		payload := build(t, fill)
		require.Equal(t, want, hex.EncodeToString(payload[headerBytes:]))
		var r Reader
		require.NoError(t, r.Reset(payload))
		op, err := r.Next()
		require.NoError(t, err)
		require.True(t, op.Code.Moves())
		require.True(t, op.Code.Alone())
		require.Equal(t, uint64(300), op.Number)
		body := payload[headerBytes+opHeaderBytes:]
		for cut := range body {
			o := Op{Code: op.Code}
			err := o.decode(body[:cut])
			if op.Code == OpImport && err == nil {
				_, err = o.CheckMoves() // Next does not verify the messages
			}
			require.ErrorIs(t, err, ErrMalformed, "%s: cut to %d bytes", op.Code, cut)
		}
		switch op.Code {
		case OpFence:
			require.Equal(t, "pair-2", string(op.Name))
			require.Equal(t, []ImportQueue{{Source: 3}, {Source: 300}}, slices.Collect(op.Moved))
		case OpImportBegin:
			require.Equal(t, "pair-1", string(op.Name))
			require.Equal(t, someImport, slices.Collect(op.Moved))
		case OpImport:
			require.Equal(t, uint64(7), op.Queue)
			require.Equal(t, uint64(5), op.Sequence)
			require.Equal(t, []uint64{9, 309}, slices.Sorted(maps.Keys(maps.Collect(op.Moves))))
			_, err := op.CheckMoves()
			require.NoError(t, err)
		case OpImportState:
			require.Equal(t, uint64(7), op.Queue)
			require.Equal(t, "aa", string(op.Name))
			require.Equal(t, somePairs, slices.Collect(op.StatePairs))
			require.False(t, op.Last)
		default:
		}
	}
	require.False(t, OpOwn.Moves())
	require.False(t, (OpForgetMove + 1).Moves())
	require.Empty(t, slices.Collect((&Op{Code: OpAck, Count: 1, Raw: []byte{1}}).Moved))
	require.Empty(t, slices.Collect((&Op{Code: OpAck, Count: 1, Raw: []byte{1, 1, 1}}).StatePairs))
}

// Queues with a tag in their names can be moved.
func TestImportQueueWithTag(t *testing.T) {
	payload := build(t, func(b *Builder) {
		b.ImportBegin(300, "pair-1", []ImportQueue{{Name: "orders{customer-7}", Source: 3}})
	})
	var r Reader
	require.NoError(t, r.Reset(payload))
	op, err := r.Next()
	require.NoError(t, err)
	require.Equal(t, []ImportQueue{{Name: "orders{customer-7}", Source: 3}}, slices.Collect(op.Moved))
}

// Invalid operations are rejected by the builder, and by the reader if they can be encoded.
func TestMalformedMoves(t *testing.T) {
	rec, err := AppendMessage(nil, 1, nil, nil, nil)
	require.NoError(t, err)
	for name, c := range map[string]struct {
		fill func(b *Builder)
		want Code
	}{
		"no epoch":          {func(b *Builder) { b.Unfence(0) }, ErrMalformed},
		"no pair":           {func(b *Builder) { b.Fence(1, "", []uint64{1}) }, ErrInvalidName},
		"no queues":         {func(b *Builder) { b.Fence(1, "p", nil) }, ErrTooLarge},
		"too many queues":   {func(b *Builder) { b.Fence(1, "p", make([]uint64, MaxMoveQueues+1)) }, ErrMalformed},
		"queue 0":           {func(b *Builder) { b.Fence(1, "p", []uint64{0}) }, ErrMalformed},
		"queues not sorted": {func(b *Builder) { b.Fence(1, "p", []uint64{2, 1}) }, ErrMalformed},
		"a queue twice": {func(b *Builder) {
			b.ImportBegin(1, "p", []ImportQueue{{"a", 1, false}, {"b", 1, false}})
		}, ErrMalformed},
		"a name": {func(b *Builder) { b.ImportBegin(1, "p", []ImportQueue{{"", 1, false}}) }, ErrInvalidName},
		"sequence": {func(b *Builder) {
			b.BeginImport(1, 1, 1)
			b.Import(MaxSequence+1, rec)
			b.EndImport()
		}, ErrTooLarge},
		"sequence 0": {func(b *Builder) { b.BeginImport(1, 1, 1); b.Import(0, rec); b.EndImport() }, ErrMalformed},
		"from 0":     {func(b *Builder) { b.BeginImport(1, 1, 0); b.Import(1, rec); b.EndImport() }, ErrMalformed},
		"key":        {func(b *Builder) { b.ImportState(1, 1, nil, []StatePair{{}}, false) }, ErrMalformed},
		"long key":   {func(b *Builder) { b.ImportState(1, 1, make([]byte, 65), nil, false) }, ErrTooLarge},
	} {
		var b Builder
		b.Begin(nil, 0, nil)
		c.fill(&b)
		_, err := b.Finish()
		if name != "too many queues" {
			require.ErrorIs(t, err, c.want, name)
		}
		require.Error(t, err, name)
	}
	for name, encoded := range map[string]struct {
		code OpCode
		body string
	}{
		"no epoch":     {OpUnfence, "00"},
		"trailing":     {OpUnfence, "0100"},
		"no queues":    {OpFence, "01" + "0170" + "00"},
		"queue 0":      {OpFence, "01" + "0170" + "01" + "00"},
		"queue twice":  {OpFence, "01" + "0170" + "02" + "01" + "00"},
		"flags":        {OpImportBegin, "01" + "0170" + "01" + "0161" + "01" + "02"},
		"empty key":    {OpImportState, "01" + "01" + "00" + "00" + "01" + "00" + "00"},
		"flag":         {OpImportState, "01" + "01" + "00" + "02" + "00"},
		"sequence 0":   {OpImport, "01" + "01" + "00" + "01000000"},
		"no messages":  {OpImport, "01" + "01" + "01" + "00000000"},
		"invalid name": {OpImportBegin, "01" + "0170" + "01" + "0120" + "01" + "00"},
	} {
		body, err := hex.DecodeString(encoded.body)
		require.NoError(t, err)
		o := Op{Code: encoded.code}
		require.Error(t, o.decode(body), name)
	}
}
