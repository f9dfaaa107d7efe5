// SPDX-License-Identifier: Apache-2.0

//go:build unix && deep

package conformance

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/client"
)

func partitionCases() []testCase {
	return []testCase{
		{name: "partitioned queue", run: partitionedQueue},
		{name: "transaction with a partitioned queue", run: partitionedTransaction},
		{name: "administration of a partitioned queue", run: partitionedAdministration},
	}
}

// partitionedQueue: a client publishes the messages of a partitioned queue to the partitions of their groups, and
// consumes all partitions.
func partitionedQueue(t *testing.T, r *run) {
	const count = 3
	whole, queues := r.partitions("", count)
	r.open("c", nil)
	groups := []string{"a", "b", "customer-7", "customer-8"}
	var pending []publication
	for range many {
		for _, g := range groups {
			to := queues[client.Partition(g, count)]
			pending = append(pending, r.publish(to, request{"queue": whole, "producer": "p"}, request{"group": g}))
		}
	}
	for _, p := range pending {
		got := r.recorded(p)
		require.Nil(t, got.Error)
	}
	r.consume("k", whole, nil)
	for range many * len(groups) {
		d, _ := r.receive("k")
		r.answer("k", d, "ack", nil)
	}
	r.flush("k")
	r.requireIdle("k")
	r.verify()
}

// partitions creates the partitions of a queue, and returns the name of the queue and those of the partitions.
func (r *run) partitions(suffix string, count int) (whole string, queues []string) {
	r.t.Helper()
	for i := range count {
		queues = append(queues, r.queue(client.PartitionName(suffix, i, count), nil))
	}
	whole, _, _ = strings.Cut(queues[0], "#")
	return whole, queues
}

// partitionedTransaction: a transaction takes a message of a partitioned queue, and publishes messages to the
// partitions of their groups, and to the partition of the taken message.
func partitionedTransaction(t *testing.T, r *run) {
	const count = 3
	in, sources := r.partitions("-in", count)
	out, targets := r.partitions("-out", count)
	r.open("c", nil)
	taken := client.Partition("customer-8", count)
	stored := r.recorded(r.publish(sources[taken], request{"queue": in}, request{"group": "customer-8"}))
	require.Nil(t, stored.Error)
	r.consume("k", in, nil)
	d, _ := r.receive("k")
	commit := func(more request) answer {
		var messages []request
		var queues []string
		for _, group := range []string{"a", "b", "customer-7", "customer-8", "a", ""} {
			to := targets[taken]
			m := request{"body": r.body()}
			if group != "" {
				to = targets[client.Partition(group, count)]
				m["group"] = group
			}
			r.o.expect(to, "", m["body"].(string))
			messages, queues = append(messages, m), append(queues, to)
		}
		more["client"], more["publish"] = "c", []request{{"queue": out, "messages": messages}}
		got := r.a.call("transact", more)
		r.o.mu.Lock()
		defer r.o.mu.Unlock()
		for i, m := range messages {
			one := r.o.messages[m["body"].(string)]
			if one.recorded = notDone; got.Error == nil {
				one.recorded, one.sequence = success, r.nextOf(queues[i])
			}
		}
		return got
	}
	take := func() request { return request{"take": []request{{"consumer": "k", "delivery": d}}} }
	require.Nil(t, commit(take()).Error)
	got := commit(take())
	require.NotNil(t, got.Error, "the message was taken before")
	require.Equal(t, "not-done", got.Error.Outcome)
	r.requireIdle("k")
	r.verify()
}

// partitionedAdministration: the description of a partitioned queue contains the sum of its partitions, and its
// deletion deletes all of them.
func partitionedAdministration(t *testing.T, r *run) {
	const count = 3
	whole, queues := r.partitions("", count)
	r.open("c", nil)
	for _, g := range []string{"a", "b", "customer-7", "customer-8"} {
		p := r.publish(queues[client.Partition(g, count)], request{"queue": whole, "producer": "p"}, request{"group": g})
		require.Nil(t, r.recorded(p).Error)
	}
	require.EqualValues(t, 4, r.a.do("queue_get", request{"client": "c", "queue": whole}).Stored)
	r.verify()
	require.EqualValues(t, 4, r.a.do("queue_delete", request{"client": "c", "queue": whole}).Stored)
	for _, q := range append(queues, whole) {
		got := r.a.call("queue_get", request{"client": "c", "queue": q})
		require.NotNil(t, got.Error)
		require.Equal(t, "QUEUE_NOT_FOUND", got.Error.Reason)
	}
}
