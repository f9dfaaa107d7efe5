// SPDX-License-Identifier: Apache-2.0

package txn

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"io"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestMessageRoundTrip(t *testing.T) {
	for _, props := range []map[string]string{nil, {"k": ""}, {"b": "2", "a": strings.Repeat("x", 300)}} {
		for _, body := range []string{"", "x", strings.Repeat("body", 5000)} {
			list := Properties(props)
			rec, err := AppendMessage([]byte("before"), -5, nil, list, []byte(body))
			require.NoError(t, err)
			rec = rec[len("before"):]
			require.Len(t, rec, MessageBytes(nil, list, []byte(body)))

			m, err := DecodeMessage(rec)
			require.NoError(t, err)
			require.Equal(t, int64(-5), m.TimestampMS)
			require.Equal(t, body, string(m.Body))
			require.Equal(t, len(props), m.PropertyCount())
			require.Equal(t, props, m.PropertyMap())

			for cut := range min(len(rec), 400) {
				_, err := DecodeMessage(rec[:cut])
				require.ErrorIs(t, err, ErrMalformed, "cut to %d bytes", cut)
			}
			_, err = DecodeMessage(append(rec, 0))
			require.ErrorIs(t, err, ErrMalformed)
		}
	}
}

func TestMessageLimits(t *testing.T) {
	big := make([]byte, MaxBodyBytes+1)
	require.NoError(t, CheckMessage(nil, nil, big[:MaxBodyBytes]))
	require.ErrorIs(t, CheckMessage(nil, nil, big), ErrTooLarge)
	require.ErrorIs(t, CheckMessage(nil, []Property{{Key: ""}}, nil), ErrInvalidName)
	require.ErrorIs(t, CheckMessage(nil, []Property{{Key: strings.Repeat("k", 256)}}, nil), ErrInvalidName)
	require.ErrorIs(t, CheckMessage(nil, []Property{{Key: "k", Value: strings.Repeat("v", MaxPropertiesBytes)}}, nil),
		ErrTooLarge)

	largest := []Property{{Key: "k", Value: strings.Repeat("v", MaxPropertiesBytes-6)}}
	rec, err := AppendMessage(nil, 0, nil, largest, []byte("body"))
	require.NoError(t, err)
	m, err := DecodeMessage(rec)
	require.NoError(t, err, "at the limits")
	require.Equal(t, "body", string(m.Body))

	rec, err = AppendMessage(nil, 0, nil, nil, []byte("body"))
	require.NoError(t, err)
	rec[sizeFieldBytes] = 4
	_, err = DecodeMessage(rec)
	require.ErrorIs(t, err, ErrNewerVersion, "an unknown flag")
}

func TestCheckName(t *testing.T) {
	for _, ok := range []string{"a", "0", "orders/eu-1.dead_letter", strings.Repeat("n", MaxNameBytes)} {
		require.NoError(t, CheckName(ok))
		require.NoError(t, CheckQueueName(ok))
		require.False(t, NeedsFeature(ok))
	}
	for _, bad := range []string{
		"", ".", "-a", "/a", "_a", "a b", "ä", "a\x00", strings.Repeat("n", MaxNameBytes+1), "{a}", "a[b]",
	} {
		require.ErrorIs(t, CheckName(bad), ErrInvalidName, "%q", bad)
		require.ErrorIs(t, CheckQueueName(bad), ErrInvalidName, "%q", bad)
	}
	for _, tagged := range []string{"orders{customer-7}", "a{", "a}/b"} {
		require.NoError(t, CheckQueueName(tagged))
		require.True(t, NeedsFeature(tagged))
		require.ErrorIs(t, CheckName(tagged), ErrInvalidName, "%q", tagged)
	}
}

// Names of queues may contain braces, names of subscriptions may not.
func TestBracesInNames(t *testing.T) {
	build := func(queue, subscription string) ([]byte, error) {
		var b Builder
		b.Begin(nil, 1, nil)
		b.OwnQueue(queue, 1)
		b.CreateQueue(queue, Config{}, subscription)
		return b.Finish()
	}
	payload, err := build("q{g}", "s")
	require.NoError(t, err)
	for _, op := range all(t, payload) {
		require.Equal(t, "q{g}", string(op.Name))
	}
	_, err = build("q", "s{g}")
	require.ErrorIs(t, err, ErrInvalidName)
	var r Reader
	invalid := bytes.Replace(payload, []byte("\x01s"), []byte("\x01{"), 1)
	require.NotEqual(t, payload, invalid)
	require.NoError(t, r.Reset(invalid))
	_, err = r.Next()
	require.NoError(t, err)
	_, err = r.Next()
	require.ErrorIs(t, err, ErrInvalidName)
}

// all decodes a whole transaction.
func all(t *testing.T, payload []byte) (ops []Op) {
	t.Helper()
	var r Reader
	require.NoError(t, r.Reset(payload))
	for {
		o, err := r.Next()
		if errors.Is(err, io.EOF) {
			return ops
		}
		require.NoError(t, err)
		ops = append(ops, *o)
	}
}

func build(t *testing.T, fill func(b *Builder)) []byte {
	t.Helper()
	var b Builder
	b.Begin(nil, 1, nil)
	fill(&b)
	payload, err := b.Finish()
	require.NoError(t, err)
	return payload
}

func TestTransactionRoundTrip(t *testing.T) {
	ranges := []Range{{5, 9}, {1, 1}, {1 << 63, 1<<64 - 1}, {7, 7}}
	var b Builder
	b.Begin([]byte("dst"), 1234, &Producer{ID: []byte("me"), Epoch: 7, Sequence: 8})
	b.BeginPublish(3)
	b.Message(11, nil, []byte("one"))
	b.Message(12, []Property{{"k", "v"}}, []byte("two"))
	b.EndPublish()
	b.Ack(4, 5, ranges...)
	b.Release(6, 7, Range{8, 9})
	payload, err := b.Finish()
	require.NoError(t, err)
	require.Equal(t, "dst", string(payload[:3]))
	payload = payload[3:]

	var r Reader
	require.NoError(t, r.Reset(payload))
	require.Equal(t, int64(1234), r.TimeMS())
	p, ok := r.Producer()
	require.True(t, ok)
	require.Equal(t, Producer{ID: []byte("me"), Epoch: 7, Sequence: 8}, p)

	ops := all(t, payload)
	require.Len(t, ops, 3)
	require.Equal(t, uint64(3), ops[0].Queue)
	require.NoError(t, ops[0].CheckRecords())
	var bodies []string
	for rec := range ops[0].Records {
		m, err := DecodeMessage(rec)
		require.NoError(t, err)
		bodies = append(bodies, string(m.Body))
	}
	require.Equal(t, []string{"one", "two"}, bodies)
	require.Equal(t, OpAck, ops[1].Code)
	require.Equal(t, uint32(5), ops[1].Sub)
	require.Equal(t, ranges, slices.Collect(ops[1].Ranges))
	require.Equal(t, OpRelease, ops[2].Code)
	require.Equal(t, []Range{{8, 9}}, slices.Collect(ops[2].Ranges))
}

// Operations on metadata survive a round trip. Keys and values above their limits are rejected.
func TestMetadataOperations(t *testing.T) {
	ops := all(t, build(t, func(b *Builder) {
		b.PutMeta("key", []byte("value"))
		b.PutMeta("empty", nil)
		b.DeleteMeta("deleted")
		b.SwapMeta("swapped", 1<<40, []byte("next"))
	}))
	require.Len(t, ops, 4)
	require.Equal(t, Op{Code: OpSwapMeta, Name: []byte("swapped"), Number: 1 << 40, Raw: []byte("next")}, ops[3])
	require.Equal(t, OpPutMeta, ops[0].Code)
	require.Equal(t, "key", string(ops[0].Name))
	require.Equal(t, "value", string(ops[0].Raw))
	require.Empty(t, ops[1].Raw)
	require.Equal(t, OpDeleteMeta, ops[2].Code)
	require.Equal(t, "deleted", string(ops[2].Name))
	for name, tc := range map[string]struct {
		key   string
		bytes int
		want  error
	}{
		"no key":      {"", 1, ErrInvalidName},
		"long key":    {strings.Repeat("k", MaxMetaKeyBytes+1), 1, ErrInvalidName},
		"large value": {"k", MaxMetaValueBytes + 1, ErrTooLarge},
		"at limits":   {strings.Repeat("k", MaxMetaKeyBytes), MaxMetaValueBytes, nil},
	} {
		var b Builder
		b.Begin(nil, 1, nil)
		b.PutMeta(tc.key, make([]byte, tc.bytes))
		payload, err := b.Finish()
		if tc.want != nil {
			require.ErrorIs(t, err, tc.want, name)
			continue
		}
		require.NoError(t, err, name)
		require.Len(t, all(t, payload)[0].Raw, tc.bytes)
	}
	var b Builder
	b.Begin(nil, 1, nil)
	b.SwapMeta("k", 0, make([]byte, MaxMetaValueBytes-MetaVersionBytes))
	payload, err := b.Finish()
	require.NoError(t, err)
	require.Len(t, all(t, payload), 1)
	b.Begin(nil, 1, nil)
	b.SwapMeta("k", 0, make([]byte, MaxMetaValueBytes-MetaVersionBytes+1))
	_, err = b.Finish()
	require.ErrorIs(t, err, ErrTooLarge)
}

// Each operation decodes to its arguments.
func TestOperationRoundTrip(t *testing.T) {
	c := Config{MaxMessages: 300, MaxBytes: 1 << 40}
	o := all(t, build(t, func(b *Builder) { b.CreateQueue("q", c, "default", "other") }))[0]
	require.Equal(t, "q", string(o.Name))
	require.Equal(t, c, *o.Config)
	var names []string
	for n := range o.Subscriptions {
		names = append(names, string(n))
	}
	require.Equal(t, []string{"default", "other"}, names)

	o = all(t, build(t, func(b *Builder) { b.AlterQueue(9, c, AllFields) }))[0]
	require.Equal(t, Op{Code: OpAlterQueue, Queue: 9, Config: &c, Mask: AllFields, Number: uint64(PlainFields)}, o)
	o = all(t, build(t, func(b *Builder) { b.DeleteQueue(9, true) }))[0]
	require.Equal(t, Op{Code: OpDeleteQueue, Queue: 9, IfEmpty: true}, o)
	o = all(t, build(t, func(b *Builder) { b.DeleteTemporary(9, 30_000) }))[0]
	require.Equal(t, Op{Code: OpDeleteQueue, Queue: 9, Temporary: 30_000}, o)
	o = all(t, build(t, func(b *Builder) { b.Purge(9, 2) }))[0]
	require.Equal(t, Op{Code: OpPurge, Queue: 9, Sub: 2}, o)
	o = all(t, build(t, func(b *Builder) { b.DeleteSubscription(9, 2) }))[0]
	require.Equal(t, Op{Code: OpDeleteSubscription, Queue: 9, Sub: 2}, o)
	o = all(t, build(t, func(b *Builder) { b.CreateSubscription(9, "s", StartEarliest) }))[0]
	require.Equal(t, Op{Code: OpCreateSubscription, Queue: 9, Name: []byte("s"), Start: StartEarliest}, o)
	plain := build(t, func(b *Builder) { b.CreateSubscriptionWith(9, "s", StartEarliest, SubscriptionOptions{}) })
	require.Equal(t, build(t, func(b *Builder) { b.CreateSubscription(9, "s", StartEarliest) }), plain)
	o = all(t, build(t, func(b *Builder) {
		b.CreateSubscriptionWith(9, "s", StartLatest, SubscriptionOptions{Filter: "size > 3"})
	}))[0]
	require.Equal(t, OpCreateSubscriptionWith, o.Code)
	require.True(t, o.Code.Alone())
	require.Equal(t, SubscriptionOptions{Filter: "size > 3"}, o.SubscriptionOptions())
	require.Equal(t, "s", string(o.Name))
}

func TestBuilderRejectsInvalidOperations(t *testing.T) {
	publish := func(b *Builder, n int) {
		b.BeginPublish(1)
		for range n {
			b.Message(0, nil, nil)
		}
		b.EndPublish()
	}
	body := make([]byte, MaxBodyBytes)
	for name, c := range map[string]struct {
		want error
		fill func(b *Builder)
	}{
		"no operation":                     {ErrMalformed, func(*Builder) {}},
		"no messages":                      {ErrInvalidMessage, func(b *Builder) { publish(b, 0) }},
		"too many messages":                {ErrInvalidMessage, func(b *Builder) { publish(b, MaxPublishMessages+1) }},
		"publish not ended":                {ErrMalformed, func(b *Builder) { b.BeginPublish(1); b.Message(0, nil, nil) }},
		"publish begun twice":              {ErrMalformed, func(b *Builder) { b.BeginPublish(1); b.BeginPublish(2) }},
		"message outside of a publish":     {ErrMalformed, func(b *Builder) { b.Message(0, nil, nil); publish(b, 1) }},
		"publish ended twice":              {ErrMalformed, func(b *Builder) { publish(b, 1); b.EndPublish() }},
		"purge and publish":                {ErrMixed, func(b *Builder) { b.Purge(1, 0); publish(b, 1) }},
		"no grace period":                  {ErrMalformed, func(b *Builder) { b.DeleteTemporary(1, 0) }},
		"no ranges":                        {ErrTooLarge, func(b *Builder) { b.Ack(1, 1) }},
		"empty range":                      {ErrMalformed, func(b *Builder) { b.Ack(1, 1, Range{2, 1}) }},
		"sequence 0":                       {ErrMalformed, func(b *Builder) { b.Release(1, 1, Range{0, 1}) }},
		"queue name":                       {ErrInvalidName, func(b *Builder) { b.CreateQueue("", Config{}) }},
		"subscription name of a new queue": {ErrInvalidName, func(b *Builder) { b.CreateQueue("q", Config{}, "?") }},
		"subscription name":                {ErrInvalidName, func(b *Builder) { b.CreateSubscription(1, "?", StartLatest) }},
		"name of a subscription with a filter": {ErrInvalidName, func(b *Builder) {
			b.CreateSubscriptionWith(1, "?", StartLatest, SubscriptionOptions{Filter: "x"})
		}},
		"long filter": {ErrTooLarge, func(b *Builder) {
			b.CreateSubscriptionWith(1, "s", StartLatest, SubscriptionOptions{Filter: string(body[:MaxFilterBytes+1])})
		}},
		"malformed record": {ErrMalformed, func(b *Builder) {
			b.BeginPublish(1)
			b.Record([]byte("malformed"))
			b.EndPublish()
		}},
		"too many operations": {ErrTooLarge, func(b *Builder) {
			for range MaxOps + 1 {
				b.Ack(1, 1, Range{1, 1})
			}
		}},
		"too large": {ErrTooLarge, func(b *Builder) {
			b.BeginPublish(1)
			b.Message(0, nil, body)
			b.Message(0, nil, body)
			b.EndPublish()
		}},
	} {
		t.Run(name, func(t *testing.T) {
			var b Builder
			b.Begin([]byte("dst"), 0, nil)
			c.fill(&b)
			dst, err := b.Finish()
			require.ErrorIs(t, err, c.want)
			require.Equal(t, "dst", string(dst))
		})
	}
	var b Builder
	b.Begin(nil, 0, &Producer{ID: nil, Sequence: 1})
	publish(&b, 1)
	_, err := b.Finish()
	require.ErrorIs(t, err, ErrMalformed)
	b.Begin(nil, 0, &Producer{ID: []byte("p")})
	publish(&b, 1)
	_, err = b.Finish()
	require.ErrorIs(t, err, ErrMalformed)
}

func TestReaderRejectsInvalidBytes(t *testing.T) {
	payload := build(t, func(b *Builder) {
		b.BeginPublish(1)
		b.Message(0, []Property{{"k", "v"}}, []byte("body"))
		b.EndPublish()
		b.Ack(1, 1, Range{1, 3})
	})
	read := func(p []byte) error {
		var r Reader
		if err := r.Reset(p); err != nil {
			return err
		}
		for {
			o, err := r.Next()
			if errors.Is(err, io.EOF) {
				return nil
			}
			if err == nil && o.Code == OpPublish {
				err = o.CheckRecords()
			}
			if err != nil {
				return err
			}
		}
	}
	require.NoError(t, read(payload))
	for cut := range payload {
		require.ErrorIs(t, read(payload[:cut]), ErrMalformed, "cut to %d bytes", cut)
	}
	require.ErrorIs(t, read(append(slices.Clone(payload), 0)), ErrMalformed)
	for at, want := range map[int]Code{0: ErrNewerVersion, 1: ErrNewerVersion, headerBytes: ErrNewerVersion} {
		changed := slices.Clone(payload)
		changed[at] = 99
		require.ErrorIs(t, read(changed), want)
	}
}

// Unknown fields are accepted if they are 0. An unknown field with another value means a newer version.
func TestConfigOfNewerVersion(t *testing.T) {
	full := append([]byte{byte(len(configFields) + 2), 1, 2, 0, 3, 4}, make([]byte, len(configFields)-4)...)
	c, rest, err := DecodeConfig(append(slices.Clone(full), 0, 'x'))
	require.NoError(t, err, "an unknown field of value 0")
	require.Equal(t, Config{MaxMessages: 1, MaxBytes: 2, MaxDeliveries: 3, DeadLetter: 4}, c)
	require.Equal(t, "x", string(rest))
	_, _, err = DecodeConfig(append(slices.Clone(full), 9))
	require.ErrorIs(t, err, ErrNewerVersion)
	_, _, err = DecodeConfig([]byte{3, 1, 2})
	require.ErrorIs(t, err, ErrMalformed)
	_, _, err = DecodeConfig(binary.AppendUvarint([]byte{4, 1, 2, 0}, MaxDeliveries+1))
	require.ErrorIs(t, err, ErrMalformed)
}

// A configuration without fields of later releases has the encoding of releases before 0.2.0.
func TestPlainConfig(t *testing.T) {
	require.Equal(t, []byte{2, 0, 0}, AppendConfig(nil, Config{}))
	require.Equal(t, []byte{2, 7, 9}, AppendConfig(nil, Config{MaxMessages: 7, MaxBytes: 9}))
	require.Equal(t, []byte{4, 0, 0, 0, 5}, AppendConfig(nil, Config{MaxDeliveries: 5}))
	require.Equal(t, []byte{5, 0, 0, 0, 0, 6}, AppendConfig(nil, Config{DeadLetter: 6}))
}

// Each configuration field has the bit of its position in the struct, survives a round trip, and has a maximum.
func TestConfigFields(t *testing.T) {
	require.Equal(t, len(configFields), reflect.TypeFor[Config]().NumField())
	require.Equal(t, AllFields, ConfigMask(1)<<len(configFields)-1)
	for i, f := range configFields {
		var c Config
		reflect.ValueOf(&c).Elem().Field(i).SetUint(1)
		require.EqualValues(t, 1, *f.of(&c), "the table and the struct have the same order")
		require.Equal(t, ConfigMask(1)<<i, c.Fields())
		*f.of(&c) = f.most
		encoded := AppendConfig(nil, c)
		got, rest, err := DecodeConfig(encoded)
		require.NoError(t, err)
		require.Empty(t, rest)
		require.Equal(t, c, got)
		require.Equal(t, c, Config{}.With(c, 1<<i))
		require.Equal(t, Config{}, Config{}.With(c, AllFields&^(1<<i)))
		if f.most != noLimit {
			*f.of(&c) = f.most + 1
			_, _, err = DecodeConfig(AppendConfig(nil, c))
			require.ErrorIs(t, err, ErrMalformed)
		}
	}
}

// A change of the plain fields has the encoding of releases before 0.2.0. These releases reject any other change,
// including a change that sets a field to 0.
func TestAlterMask(t *testing.T) {
	op := func(c Config, mask ConfigMask) (Op, []byte) {
		var b Builder
		b.Begin(nil, 0, nil)
		b.AlterQueue(1, c, mask)
		payload, err := b.Finish()
		require.NoError(t, err)
		var r Reader
		require.NoError(t, r.Reset(payload))
		o, err := r.Next()
		require.NoError(t, err)
		return *o, payload[headerBytes+opHeaderBytes:]
	}
	o, body := op(Config{MaxMessages: 7}, PlainFields)
	require.Equal(t, []byte{1, 2, 7, 0}, body)
	require.Equal(t, PlainFields, o.Mask)
	o, body = op(Config{MaxBytes: 5, TTL: 6}, FieldTTL)
	require.Equal(t, []byte{1, 6, 0, 5, byte(FieldTTL), 0, 0, 6}, body)
	require.Equal(t, FieldTTL, o.Mask)
	o, body = op(Config{}, FieldMaxDeliveries)
	require.Equal(t, []byte{1, 3, 0, 0, byte(FieldMaxDeliveries)}, body, "an older release rejects the third field")
	require.Equal(t, FieldMaxDeliveries, o.Mask)
	_, _, err := DecodeConfig(body[1:])
	require.ErrorIs(t, err, ErrMalformed, "the configuration of a queue has no mask")
	d := decoder{b: binary.AppendUvarint([]byte{3, 0, 0}, uint64(AllFields+1))}
	d.config()
	require.ErrorIs(t, d.err, ErrNewerVersion)
}

// The encoding of version 1 is stable: old logs must remain readable.
func TestGolden(t *testing.T) {
	const golden = "01010200d204000000000000" + "026d65" + "0700000008000000" + "00000000" +
		"0727000000" + "03" + "01000000" + "1e000000" + "01" + "0b00000000000000" + "01016b03766178" + "7468652062" +
		"6f647920696e206974" + "0805000000" + "0405010a04"
	want, err := hex.DecodeString(golden)
	require.NoError(t, err)
	var b Builder
	b.Begin(nil, 1234, &Producer{ID: []byte("me"), Epoch: 7, Sequence: 8})
	b.BeginPublish(3)
	b.Message(11, []Property{{"k", "vax"}}, []byte("the body in it"))
	b.EndPublish()
	b.Ack(4, 5, Range{5, 9})
	got, err := b.Finish()
	require.NoError(t, err)
	require.Equal(t, hex.EncodeToString(want), hex.EncodeToString(got))
	require.Len(t, all(t, want), 2)
}

// The time of a transaction is limited to the years 1970 to 9999, which a checkpoint can contain.
func TestTimeIsLimited(t *testing.T) {
	for given, want := range map[int64]int64{-1: 0, 0: 0, 7: 7, MaxTimeMS: MaxTimeMS, MaxTimeMS + 1: MaxTimeMS} {
		var b Builder
		b.Begin(nil, given, nil)
		b.Purge(1, 0)
		payload, err := b.Finish()
		require.NoError(t, err)
		var r Reader
		require.NoError(t, r.Reset(payload))
		require.Equal(t, want, r.TimeMS())
	}
}

// Each code has a text, and the error of a result names the failed operation.
func TestCodesHaveTexts(t *testing.T) {
	known := 0
	for c := range 256 {
		if text := Code(c).Error(); !strings.HasPrefix(text, "error code") {
			known++
		}
	}
	require.Equal(t, 52, known, "codes with a text")
	r := Result{Code: ErrQueueFull, Op: 3}
	require.ErrorIs(t, r.Err(), ErrQueueFull)
	require.Contains(t, r.Err().Error(), "operation 3")
	r = Result{Code: ErrFenced, Op: -1}
	require.NotContains(t, r.Err().Error(), "operation")
	r = Result{}
	require.NoError(t, r.Err())
}

func TestDecodingDoesNotAllocate(t *testing.T) {
	payload := build(t, func(b *Builder) {
		b.BeginPublish(1)
		for range 1000 {
			b.Message(0, []Property{{"key", "value"}}, []byte("body"))
		}
		b.EndPublish()
		b.Ack(1, 1, Range{1, 3}, Range{9, 10})
	})
	var r Reader
	bytes := 0
	allocs := testing.AllocsPerRun(20, func() {
		if r.Reset(payload) != nil {
			t.Fatal("reset")
		}
		for {
			o, err := r.Next()
			if err != nil {
				break
			}
			for rec := range o.Records {
				m, err := DecodeMessage(rec)
				if err != nil {
					t.Fatal(err)
				}
				bytes += len(m.Body)
			}
			for rg := range o.Ranges {
				bytes += int(rg.Last)
			}
		}
	})
	require.Zero(t, allocs)
	require.NotZero(t, bytes)
}

// Valid subscription options survive a round trip. Malformed options and options of a newer version are rejected.
func TestSubscriptionOptions(t *testing.T) {
	for name, c := range map[string]struct {
		bytes []byte
		want  error
	}{
		"no options":               {nil, nil},
		"filter":                   {[]byte{1, 1, 'x'}, nil},
		"empty filter":             {[]byte{1, 0}, ErrMalformed},
		"filter twice":             {[]byte{1, 1, 'x', 1, 1, 'y'}, ErrMalformed},
		"tag 0":                    {[]byte{0, 1, 'x'}, ErrMalformed},
		"truncated":                {[]byte{1, 5, 'x'}, ErrMalformed},
		"policy":                   {[]byte{1, 1, 'x', 2, 3, 4, 200, 1}, nil},
		"two fields":               {[]byte{2, 3, 12, 0, 7}, nil},
		"policy without fields":    {[]byte{2, 1, 0}, ErrMalformed},
		"policy above a maximum":   {[]byte{2, 5, 4, 255, 255, 255, 1}, ErrMalformed},
		"more values than fields":  {[]byte{2, 3, 4, 1, 1}, ErrMalformed},
		"fewer values than fields": {[]byte{2, 1, 4}, ErrMalformed},
		"unknown policy field":     {[]byte{2, 2, 1, 1}, ErrNewerVersion},
		"unknown tag":              {[]byte{1, 1, 'x', 9, 1, 'y'}, ErrNewerVersion},
	} {
		o, err := DecodeSubscriptionOptions(c.bytes)
		require.ErrorIs(t, err, c.want, name)
		if err == nil {
			require.Equal(t, c.bytes, AppendSubscriptionOptions(nil, o), name)
		}
	}
}
