// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"reflect"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/client"
)

// All fields of a configuration survive the conversion, and invalid values are rejected.
func TestQueueConfig(t *testing.T) {
	c := QueueConfig{}
	for i, v := range reflect.ValueOf(&c).Elem().Fields() {
		switch n := int64(i.Index[0] + 1); v.Kind() {
		case reflect.String:
			v.SetString("dead")
		case reflect.Bool:
			v.SetBool(true)
		case reflect.Float64:
			v.SetFloat(1.5)
		case reflect.Int:
			v.SetInt(int64(OverflowDeadLetterHead))
		case reflect.Int64:
			v.SetInt(n * int64(time.Second))
		default:
			v.SetUint(uint64(n))
		}
	}
	require.NoError(t, c.check())
	require.Equal(t, c, configFromProto(c.toProto()))
	require.Equal(t, QueueConfig{}, configFromProto(QueueConfig{}.toProto()))
	require.Equal(t, QueueConfig{}, configFromProto(nil))
	for text, c := range map[string]QueueConfig{
		"overflow 3":  {Overflow: 3},
		"overflow -1": {Overflow: -1},
	} {
		require.ErrorIs(t, c.check(), client.ErrInvalid)
		require.Contains(t, c.check().Error(), text)
	}
	for o := OverflowReject; o <= OverflowDeadLetterHead; o++ {
		got, err := ParseOverflow(o.String())
		require.NoError(t, err)
		require.Equal(t, o, got)
	}
	_, err := ParseOverflow("drop")
	require.Error(t, err)
	for o := OverflowReject; o <= OverflowDeadLetterHead; o++ {
		require.Contains(t, err.Error(), o.String())
	}
}

// References contains the queues that are set on the queue, its subscriptions and its forwards, and not those of
// policies.
func TestReferences(t *testing.T) {
	dead, none := "dead.billing", ""
	q := Queue{
		Config:        QueueConfig{DeadLetter: "dead.policy"},
		Subscriptions: []Subscription{{}, {Redelivery: RedeliveryPolicy{DeadLetter: &none}}},
	}
	require.Empty(t, q.References())
	q.Own.Config.DeadLetter = "dead"
	q.Subscriptions[0].Redelivery.DeadLetter = &dead
	q.Forwards = []Forward{{To: "copy"}}
	require.ElementsMatch(t, []string{"dead", "dead.billing", "copy"}, q.References())
}
