// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"math"
	"reflect"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/client"
)

// All fields of a configuration survive the conversion, and invalid values are rejected.
func TestQueueConfig(t *testing.T) {
	c := QueueConfig{
		MaxMessages: 1, MaxBytes: 2, MaxDeliveries: 3, DeadLetter: "dead", TTL: 4 * time.Second, Delay: 5 * time.Second,
		RedeliveryDelay: 6 * time.Second, RedeliveryMultiplier: 1.5, RedeliveryMaxDelay: 7 * time.Second,
		RetentionAge: 8 * time.Second, RetentionBytes: 9, RetentionMessages: 10, Overflow: OverflowDeadLetterHead,
		Priorities: true, Exclusive: true, DeadLetterExpired: true, TemporaryGrace: 11 * time.Second,
	}
	for i := range reflect.TypeFor[QueueConfig]().NumField() {
		require.False(t, reflect.ValueOf(c).Field(i).IsZero(), "field %d has no value in this test", i)
	}
	require.NoError(t, c.check())
	require.Equal(t, c, configFromProto(c.toProto()))
	require.Equal(t, QueueConfig{}, configFromProto(QueueConfig{}.toProto()))
	require.Equal(t, QueueConfig{}, configFromProto(nil))
	for text, c := range map[string]QueueConfig{
		"TTL is -1s, must be 0 to 100 years":              {TTL: -time.Second},
		"TemporaryGrace is -1ns":                          {TemporaryGrace: -1},
		"RedeliveryMultiplier is 0.9, must be 1 to 1000":  {RedeliveryMultiplier: 0.9},
		"RedeliveryMultiplier is NaN, must be 1 to 1000":  {RedeliveryMultiplier: math.NaN()},
		"unknown overflow 3":                              {Overflow: 3},
		"unknown overflow -1":                             {Overflow: -1},
		"MaxDeliveries is 1000001, must be 1 to 1000000,": {MaxDeliveries: 1_000_001},
	} {
		require.ErrorContains(t, c.check(), text)
		require.ErrorIs(t, c.check(), client.ErrInvalid)
	}
	for o := OverflowReject; o <= OverflowDeadLetterHead; o++ {
		got, err := ParseOverflow(o.String())
		require.NoError(t, err)
		require.Equal(t, o, got)
	}
	_, err := ParseOverflow("drop")
	require.ErrorContains(t, err, "reject, drop-head, dead-letter-head")
}
