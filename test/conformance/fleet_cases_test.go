// SPDX-License-Identifier: Apache-2.0

//go:build unix && deep

package conformance

import (
	"context"
	"maps"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/lockstep-mq/lockstep/fleet"
	"github.com/lockstep-mq/lockstep/test/coordtest"
	"github.com/lockstep-mq/lockstep/test/harness"
)

func fleetCases() []testCase {
	return []testCase{
		{name: "queues of two pairs", in: twoPairs, run: queuesOfTwoPairs},
		{name: "transaction with queues of another pair", in: twoPairs, run: transactionOfOther},
		{name: "the owner restarts", long: true, in: twoPairs, run: ownerRestarts},
	}
}

// ofOther is the suffix of the names of queues at the second pair.
const ofOther = "-other"

// startOther starts the directory of a fleet and its second pair, and sets the options of the first pair.
func startOther(t *testing.T, o *harness.Options, binary, dir string) *harness.Pair {
	t.Helper()
	etcd := coordtest.StartEtcd(t, filepath.Join(t.TempDir(), "etcd"), "")
	t.Cleanup(func() { require.NoError(t, etcd.Close()) })
	rules, err := clientv3.New(clientv3.Config{Endpoints: etcd.Endpoints(), Logger: zap.NewNop()})
	require.NoError(t, err)
	defer func() { require.NoError(t, rules.Close()) }()
	for pattern, rule := range map[string]string{"*": `{"pair":"first"}`, "*" + ofOther: `{"pair":"second"}`} {
		_, err := rules.Put(t.Context(), fleet.DefaultPrefix+"/rules/"+pattern, rule)
		require.NoError(t, err)
	}
	settings := func(pair string) map[string]string {
		all := maps.Clone(o.Settings)
		all["fleet.pair"], all["fleet.endpoints"] = pair, strings.Join(etcd.Endpoints(), ",")
		return all
	}
	second, err := harness.Start(t.Context(), harness.Options{
		Binary: binary, Dir: filepath.Join(dir, "second"), Standalone: true, Settings: settings("second"),
	})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, second.KillAll()) })
	o.Settings = settings("first")
	return second
}

// pairOf returns the active node of the pair of a queue.
func (r *run) pairOf(queue string) *harness.Node {
	r.t.Helper()
	if r.other == nil || !strings.HasSuffix(queue, ofOther) {
		active, _ := r.inSync(r.t)
		return active
	}
	ctx, cancel := context.WithTimeout(r.t.Context(), bound)
	defer cancel()
	active, err := r.other.WaitActive(ctx)
	require.NoError(r.t, err)
	return active
}

// queuesOfTwoPairs: a client with the address of one pair uses queues of both, and preserves the order in each.
func queuesOfTwoPairs(t *testing.T, r *run) {
	queues := []string{r.queue("", nil), r.queue(ofOther, nil)}
	r.open("c", nil)
	var pending []publication
	for range many {
		for _, q := range queues {
			pending = append(pending, r.publish(q, request{"producer": "p"}))
		}
	}
	for _, p := range pending {
		got := r.recorded(p)
		require.Nil(t, got.Error)
	}
	for _, q := range queues {
		r.consume("k"+q, q, nil)
		for range many {
			d, _ := r.receive("k" + q)
			r.answer("k"+q, d, "ack", nil)
		}
		r.flush("k" + q)
		r.requireIdle("k" + q)
	}
	r.verify()
}

// transactionOfOther: a transaction with queues of one other pair is executed there. With queues of two pairs, it is
// rejected.
func transactionOfOther(t *testing.T, r *run) {
	one, other, second := r.queue("", nil), r.queue(ofOther, nil), r.queue("-2"+ofOther, nil)
	r.open("c", nil)
	commit := func(queues ...string) answer {
		var publish []request
		for _, q := range queues {
			b := r.body()
			r.o.expect(q, "", b)
			publish = append(publish, request{"queue": q, "messages": []request{{"body": b}}})
		}
		return r.a.call("transact", request{"client": "c", "publish": publish})
	}
	require.Nil(t, commit(other, second).Error)
	got := commit(one, other)
	require.NotNil(t, got.Error)
	require.Equal(t, "CROSS_PAIR", got.Error.Reason)
	require.Equal(t, "not-done", got.Error.Outcome)
}

// ownerRestarts: publishes continue after a restart of the other pair.
func ownerRestarts(t *testing.T, r *run) {
	q := r.queue(ofOther, nil)
	r.open("c", nil)
	r.stored(q, request{"producer": "p"})
	active := r.pairOf(q)
	require.NoError(t, active.Kill())
	var pending []publication
	for range many {
		pending = append(pending, r.publish(q, request{"producer": "p"}))
	}
	require.NoError(t, active.Start())
	for _, p := range pending {
		r.recorded(p)
	}
	r.verify()
}
