// SPDX-License-Identifier: Apache-2.0

package txn

import (
	"encoding/hex"
	"hash/crc32"
	"math"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
)

func someJoin() FleetChange {
	return FleetChange{Action: FleetJoin, ID: uuid.UUID{1, 15: 2}, Pair: "pair-1", Epoch: 300}
}

// The changes of a fleet survive a round trip, and their encoding must not change.
func TestFleetChanges(t *testing.T) {
	for want, c := range map[string]FleetChange{
		"0101000000000000000000000000000002" + "06706169722d31" + "ac02": someJoin(),
		"02": {Action: FleetLeave},
	} {
		payload := build(t, func(b *Builder) { b.Fleet(c) })
		var r Reader
		require.NoError(t, r.Reset(payload))
		op, err := r.Next()
		require.NoError(t, err)
		require.Equal(t, want, hex.EncodeToString(op.Raw))
		require.Equal(t, c, op.FleetChange())
		body := payload[headerBytes+opHeaderBytes:]
		for cut := range body {
			o := Op{Code: OpFleet}
			require.Error(t, o.decode(body[:cut]), "cut to %d bytes", cut)
		}
	}
	require.True(t, OpFleet.Alone())
}

// Invalid changes are rejected by the builder and the reader.
func TestMalformedFleetChange(t *testing.T) {
	for name, change := range map[string]struct {
		edit func(c *FleetChange)
		want Code
	}{
		"no ID":    {func(c *FleetChange) { c.ID = uuid.Nil }, ErrMalformed},
		"no epoch": {func(c *FleetChange) { c.Epoch = 0 }, ErrMalformed},
		"no pair":  {func(c *FleetChange) { c.Pair = "" }, ErrInvalidName},
		"bad pair": {func(c *FleetChange) { c.Pair = "a b" }, ErrInvalidName},
		"unknown":  {func(c *FleetChange) { c.Action = 3 }, ErrNewerVersion},
		"action 0": {func(c *FleetChange) { c.Action = 0 }, ErrNewerVersion},
	} {
		c := someJoin()
		change.edit(&c)
		var b Builder
		b.Begin(nil, 0, nil)
		b.Fleet(c)
		encoded := append([]byte(nil), b.buf[headerBytes+opHeaderBytes:]...)
		_, err := b.Finish()
		require.ErrorIs(t, err, change.want, name)
		o := Op{Code: OpFleet}
		require.ErrorIs(t, o.decode(encoded), change.want, name)
	}
	o := Op{Code: OpFleet}
	require.ErrorIs(t, o.decode([]byte{byte(FleetLeave), 0}), ErrMalformed, "trailing bytes")
	require.Zero(t, (&Op{Code: OpAck, Raw: []byte{1}}).FleetChange())
}

// An OpOwn survives a round trip, and its encoding must not change.
func TestOwnQueue(t *testing.T) {
	payload := build(t, func(b *Builder) { b.OwnQueue("orders", math.MaxUint64); b.CreateQueue("orders", Config{}) })
	require.Equal(t, "066f7264657273"+"ffffffffffffffffff01",
		hex.EncodeToString(payload[headerBytes+opHeaderBytes:][:17]))
	var r Reader
	require.NoError(t, r.Reset(payload))
	op, err := r.Next()
	require.NoError(t, err)
	require.Equal(t, OpOwn, op.Code)
	require.Equal(t, "orders", string(op.Name))
	require.Equal(t, uint64(math.MaxUint64), op.Number)
	require.Zero(t, op.Own())

	for name, bad := range map[string][]byte{
		"no epoch": {1, 'q', 0}, "bad name": {1, ' ', 1}, "trailing bytes": {1, 'q', 1, 0}, "truncated": {1, 'q'},
	} {
		o := Op{Code: OpOwn}
		require.Error(t, o.decode(bad), name)
	}
	for _, c := range []struct {
		name  string
		epoch uint64
		want  Code
	}{{"q", 0, ErrMalformed}, {" ", 1, ErrInvalidName}} {
		var b Builder
		b.Begin(nil, 0, nil)
		b.OwnQueue(c.name, c.epoch)
		_, err := b.Finish()
		require.ErrorIs(t, err, c.want)
	}
}

// An OpOwn is the only operation of a transaction, or precedes only the creation of the same queue.
func TestOwnQueueAlone(t *testing.T) {
	finish := func(builds ...func(b *Builder)) error {
		var b Builder
		b.Begin(nil, 0, nil)
		for _, build := range builds {
			build(&b)
		}
		_, err := b.Finish()
		return err
	}
	own := func(b *Builder) { b.OwnQueue("q", 1) }
	create := func(b *Builder) { b.CreateQueue("q", Config{}) }
	other := func(b *Builder) { b.CreateQueue("r", Config{}) }
	ack := func(b *Builder) { b.Ack(1, 1, Range{1, 1}) }
	require.NoError(t, finish(own))
	require.NoError(t, finish(own, create))
	for _, mixed := range [][]func(b *Builder){
		{own, other},
		{own, own},
		{own, ack},
		{ack, own},
		{create, own},
		{create, create},
		{own, create, ack},
		{own, create, create},
		{ack, own, create},
	} {
		require.ErrorIs(t, finish(mixed...), ErrMixed)
	}
}

// The epoch is not part of a client's request.
func TestFingerprintWithoutEpoch(t *testing.T) {
	table := crc32.MakeTable(crc32.Castagnoli)
	create := func(b *Builder) { b.CreateQueue("q", Config{}, "s") }
	want, err := Fingerprint(build(t, create), table)
	require.NoError(t, err)
	got, err := Fingerprint(build(t, func(b *Builder) { b.OwnQueue("q", 7); create(b) }), table)
	require.NoError(t, err)
	require.Equal(t, want, got)
}
