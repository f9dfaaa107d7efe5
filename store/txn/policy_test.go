// SPDX-License-Identifier: Apache-2.0

package txn

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// The set of explicit fields is stored only if it differs from the set of non-zero fields.
func TestExplicitConfigFields(t *testing.T) {
	for _, tt := range []struct {
		c   Config
		own ConfigMask
	}{
		{Config{}, 0},
		{Config{}, PlainFields},
		{Config{}, FieldMaxMessages},
		{Config{}, FieldTTL},
		{Config{MaxBytes: 7}, FieldMaxBytes},
		{Config{MaxBytes: 7}, PlainFields},
		{Config{MaxBytes: 7, TTL: 3}, FieldMaxBytes | FieldTTL},
		{Config{MaxBytes: 7, TTL: 3}, AllFields},
	} {
		b := AppendOwnConfig(nil, tt.c, tt.own)
		if tt.own == tt.c.Fields() {
			require.Equal(t, AppendConfig(nil, tt.c), b)
		}
		c, own, rest, err := DecodeOwnConfig(append(b, 'x'))
		require.NoError(t, err)
		require.Equal(t, tt.c, c)
		require.Equal(t, tt.own, own)
		require.Equal(t, []byte("x"), rest)
	}
	_, _, _, err := DecodeOwnConfig(appendConfig(nil, Config{TTL: 3}, FieldDelay))
	require.ErrorIs(t, err, ErrMalformed)
	_, _, _, err = DecodeOwnConfig(appendConfig(nil, Config{}, FieldDedupMax<<1))
	require.ErrorIs(t, err, ErrNewerVersion)
}

// The builder and the decoder reject invalid policies, and CheckPattern rejects invalid patterns.
func TestInvalidPolicy(t *testing.T) {
	for name, p := range map[string]QueuePolicy{
		"empty":                              {Priority: 3},
		"priority":                           {Priority: MaxPolicyPriority + 1, Defaults: Config{TTL: 1}},
		"fixed option":                       {Defaults: Config{Priorities: 1}},
		"internal option":                    {Defaults: Config{TTL: 1, ExactBytes: 1}},
		"limit of a retention age":           {Limits: Config{RetentionAge: 1}},
		"overflow without dead-letter queue": {Defaults: Config{Overflow: OverflowDeadLetterHead}},
		"limit of an ack timeout":            {Limits: Config{AckTimeout: 1}},
	} {
		var b Builder
		b.Begin(nil, 1, nil)
		b.PutPolicy("x", p)
		_, err := b.Finish()
		require.Error(t, err, name)
		_, err = DecodeQueuePolicy(AppendQueuePolicy(nil, &p))
		require.Error(t, err, name)
	}
	require.NoError(t, CheckPattern("team-a/*.v?"))
	require.NoError(t, CheckPattern("*{customer-7}"))
	require.NoError(t, CheckPattern("orders#*"))
	for _, pattern := range []string{"", "a b", "[a]", "a,b", string(make([]byte, 300))} {
		require.ErrorIs(t, CheckPattern(pattern), ErrInvalidName, pattern)
	}
}

// The values of a queue take precedence over the defaults, and limits apply to both.
func TestApplyPolicy(t *testing.T) {
	defaults := &QueuePolicy{Defaults: Config{MaxDeliveries: 5, DeadLetter: 7, TTL: 1000, MaxBytes: 100}}
	limits := &QueuePolicy{Limits: Config{MaxBytes: 50, MaxMessages: 10}}
	own := Config{MaxMessages: 3, MaxDeliveries: 2}
	require.Equal(t, own, own.Apply(own.Fields(), nil, nil, false))
	require.Equal(t,
		Config{MaxMessages: 3, MaxDeliveries: 2, DeadLetter: 7, TTL: 1000, MaxBytes: 50, ExactBytes: 1},
		own.Apply(own.Fields(), defaults, limits, false))
	require.Equal(t, Config{MaxMessages: 10, TTL: 1000, MaxBytes: 50, ExactBytes: 1},
		Config{}.Apply(0, defaults, limits, true), "dead letters of a dead-letter queue are not discarded")
	require.Equal(t, Config{MaxMessages: 20, DeadLetter: 9, MaxDeliveries: 5, TTL: 1000, MaxBytes: 100, ExactBytes: 1},
		Config{MaxMessages: 20, DeadLetter: 9}.Apply(FieldMaxMessages|FieldDeadLetter, defaults, nil, true))
	require.Equal(t, Config{MaxDeliveries: 5, DeadLetter: 7, MaxBytes: 100, ExactBytes: 1},
		Config{}.Apply(FieldTTL, defaults, nil, false), "an explicit 0 takes precedence")
	require.Equal(t, Config{}, Config{Overflow: OverflowDeadLetterHead}.Apply(FieldOverflow, nil, nil, false))
}
