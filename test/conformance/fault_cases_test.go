// SPDX-License-Identifier: Apache-2.0

//go:build unix && deep

package conformance

import (
	"crypto/sha256"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/test/harness/faultproxy"
)

func faultCases() []testCase {
	return []testCase{
		{name: "invalid token", run: wrongToken},
		{name: "revoked token", run: revokedToken},
		{name: "requests without a response are retried", run: lostResponses},
		{name: "an unknown outcome is not reported as failed", run: unknownOutcomes},
		{name: "only the address of the standby", run: standbyOnly},
		{name: "the active is killed with a pipeline", run: killUnderPipeline},
		{name: "the active is killed with consumers", long: true, run: killUnderConsumer},
		{name: "the active is killed with transactions", long: true, run: killUnderTransactions},
		{name: "the active is suspended and resumes", long: true, run: frozen},
		{name: "switchovers under load", long: true, run: switchovers},
		{name: "both nodes are restarted", long: true, run: restart},
		{name: "both nodes are down for a while", long: true, run: bothDown},
	}
}

// makeToken creates an access token on the pair.
func (r *run) makeToken(name string) string {
	r.t.Helper()
	token := "lsk_conformance-" + name + "-0123456789abcdef"
	sum := sha256.Sum256([]byte(token))
	active, _ := r.inSync(r.t)
	_, err := pb.NewAccessServiceClient(active.Conn()).CreateToken(r.t.Context(), &pb.CreateTokenRequest{
		Token: &pb.AccessToken{Name: name, Principal: name, Sha256: sum[:]},
	})
	require.NoError(r.t, err)
	return token
}

func wrongToken(t *testing.T, r *run) {
	q := r.queue("", nil)
	r.open("c", request{"token": "lsk_a-token-that-the-pair-does-not-have"})
	got := r.recorded(r.publish(q, request{"timeout_ms": bound.Milliseconds()}))
	require.NotNil(t, got.Error)
	require.Equal(t, "not-done", got.Error.Outcome)
	require.Equal(t, "UNAUTHENTICATED", got.Error.Reason)
	got = r.a.call("consume", request{"client": "c", "consumer": "k", "queue": q, "timeout_ms": bound.Milliseconds()})
	require.NotNil(t, got.Error)
	require.Equal(t, "UNAUTHENTICATED", got.Error.Reason)
	r.verify()
}

func revokedToken(t *testing.T, r *run) {
	q := r.queue("", nil)
	r.open("c", request{"token": r.makeToken("robot")})
	r.stored(q, request{"producer": "p"})
	r.consume("k", q, nil)
	d, _ := r.receive("k")
	r.answer("k", d, "ack", nil)
	r.flush("k")
	active, _ := r.inSync(t)
	_, err := pb.NewAccessServiceClient(active.Conn()).RevokeToken(t.Context(), &pb.RevokeTokenRequest{Name: "robot"})
	require.NoError(t, err)
	got := r.a.call("receive", request{"consumer": "k", "timeout_ms": bound.Milliseconds()})
	require.NotNil(t, got.Error, "the consumer is notified")
	require.Contains(t, []string{"TOKEN_EXPIRED", "UNAUTHENTICATED"}, got.Error.Reason)
	got = r.recorded(r.publish(q, request{"producer": "p", "timeout_ms": bound.Milliseconds()}))
	require.NotNil(t, got.Error)
	require.Equal(t, "not-done", got.Error.Outcome)
	require.Contains(t, []string{"TOKEN_EXPIRED", "UNAUTHENTICATED"}, got.Error.Reason)
	r.verify()
}

// throughRelays opens a client that connects to the nodes through the relays, which can cut its links.
func (r *run) throughRelays() {
	r.t.Helper()
	var addresses []string
	for _, l := range r.relays {
		addresses = append(addresses, l.Address())
	}
	r.a.do("open", request{"client": "c", "addresses": addresses, "fixed_addresses": true})
}

// dropResponses forwards requests to the nodes, but drops their responses. repair resets the connections, and restores
// the links.
func (r *run) dropResponses() (repair func()) {
	for _, l := range r.relays {
		l.CutOneWay(faultproxy.FromTarget)
	}
	return func() {
		for _, l := range r.relays {
			l.Reset()
			l.Heal()
		}
	}
}

// storedIn returns the number of messages that were ever stored in a queue.
func (r *run) storedIn(queue string) uint64 {
	r.t.Helper()
	active, _ := r.inSync(r.t)
	got, err := pb.NewQueueServiceClient(active.Conn()).GetQueue(r.t.Context(), &pb.GetQueueRequest{Name: queue})
	require.NoError(r.t, err)
	return got.GetQueue().GetNextSequence() - 1
}

// lostResponses: a node stores a message, and its response is lost. The client retries with the same sequence, and
// receives the original result, with "duplicate" set.
func lostResponses(t *testing.T, r *run) {
	q := r.queue("", nil)
	r.throughRelays()
	r.stored(q, request{"producer": "p"})
	// The client stops sending when it considers the nodes unreachable. On a slow machine, this may happen before it has
	// sent anything.
	for end := time.Now().Add(bound); r.o.duplicates == 0; {
		require.True(t, time.Now().Before(end), "no message was stored before the response was lost")
		before := r.storedIn(q)
		repair := r.dropResponses()
		var all []publication
		for range 50 {
			all = append(all, r.publish(q, request{"producer": "p"}))
		}
		for dropped := time.Now(); r.storedIn(q) == before && time.Since(dropped) < 3*time.Second; {
			<-time.After(5 * time.Millisecond)
		}
		repair()
		for _, p := range all {
			r.a.success("publish", r.recorded(p))
		}
	}
	r.verify()
}

// unknownOutcomes: an application's timeout expires while responses are lost. A stored message is not reported as
// failed.
func unknownOutcomes(t *testing.T, r *run) {
	q := r.queue("", nil)
	r.throughRelays()
	r.stored(q, request{"producer": "p"})
	// On a slow machine, a short timeout may expire before the client has sent anything.
	acknowledged := uint64(1)
	for timeout := 400 * time.Millisecond; r.storedIn(q) == acknowledged; timeout *= 2 {
		require.Less(t, timeout, bound, "no request was stored without a response")
		repair := r.dropResponses()
		var all []publication
		for range 20 {
			all = append(all, r.publish(q, request{"producer": "p", "timeout_ms": timeout.Milliseconds()}))
		}
		for _, p := range all {
			require.NotNil(t, r.recorded(p).Error, "no response was possible")
		}
		_, got := r.transact(q, request{"timeout_ms": 300})
		require.NotNil(t, got.Error)
		repair()
		r.stored(q, request{"producer": "after"})
		acknowledged++
	}
	// Requests in flight may still be stored, once.
	r.a.do("close", request{"client": "c"})
	r.verify()
	require.NotZero(t, r.o.unknownStored, "no request was stored without a response")
}

func standbyOnly(t *testing.T, r *run) {
	q := r.queue("", nil)
	_, standby := r.inSync(t)
	r.open("c", request{"addresses": []string{standby.Address}})
	r.stored(q, nil)
	r.open("narrow", request{"addresses": []string{standby.Address}, "fixed_addresses": true})
	got := r.recorded(r.publish(q, request{"client": "narrow", "timeout_ms": 500}))
	require.NotNil(t, got.Error, "the standby stores nothing")
	require.Equal(t, "not-done", got.Error.Outcome)
	r.verify()
}

// underLoad publishes in a pipeline while event runs, and requires that each message is stored.
func (r *run) underLoad(queue string, event func()) {
	r.t.Helper()
	var all []publication
	push := func() {
		for range many {
			all = append(all, r.publish(queue, request{"producer": "load"}))
		}
	}
	push()
	done := make(chan struct{})
	go func() {
		defer close(done)
		event()
	}()
	push()
	// Some responses may be received before the event, and others after it.
	for _, p := range all {
		r.a.success("publish", r.recorded(p))
	}
	<-done
}

func killUnderPipeline(t *testing.T, r *run) {
	q := r.queue("", nil)
	r.open("c", nil)
	r.stored(q, request{"producer": "load"})
	active, _ := r.inSync(t)
	r.underLoad(q, func() { _ = active.Kill() })
	require.False(t, active.Running(), "the active was killed")
	r.verify()
}

func killUnderConsumer(t *testing.T, r *run) {
	q := r.queue("", nil)
	r.open("c", nil)
	const total = 400
	var all []publication
	for range total {
		all = append(all, r.publish(q, request{"producer": "p"}))
	}
	for _, p := range all {
		r.a.success("publish", r.recorded(p))
	}
	r.consume("k", q, request{"prefetch": 50})
	seen := map[uint64]int{}
	active, _ := r.inSync(t)
	for i := range total {
		if i == total/3 {
			require.NoError(t, active.Kill())
		}
		d, m := r.receive("k")
		seen[m.Sequence]++
		require.Equal(t, 1, seen[m.Sequence], "a message was redelivered although it was acknowledged or in flight")
		r.answer("k", d, "ack", nil)
	}
	r.flush("k")
	r.requireIdle("k")
	r.a.do("consumer_close", request{"consumer": "k"})
	r.inSync(t)
	r.consume("again", q, nil)
	r.requireIdle("again")
	r.verify()
}

func killUnderTransactions(t *testing.T, r *run) {
	in, out := r.queue("-in", nil), r.queue("-out", nil)
	r.open("c", nil)
	const total = 60
	for range total {
		r.stored(in, request{"producer": "p"})
	}
	r.consume("k", in, request{"prefetch": 10})
	active, _ := r.inSync(t)
	taken := map[uint64]bool{}
	killed := make(chan struct{})
	for i := 0; len(taken) < total; i++ {
		if i == total/3 {
			go func() {
				defer close(killed)
				_ = active.Kill()
			}()
		}
		d, m := r.receive("k")
		_, got := r.transact(out, request{"take": []request{{"consumer": "k", "delivery": d}}})
		require.Nil(t, got.Error)
		require.False(t, taken[m.Sequence], "a message was redelivered after the transaction that acknowledged it")
		taken[m.Sequence] = true
	}
	<-killed
	r.requireIdle("k")
	r.verify()
}

// frozen: the active's process is suspended, so that its connections stay open, and resumes when the other node has
// taken over.
func frozen(t *testing.T, r *run) {
	q := r.queue("", nil)
	r.open("c", nil)
	r.stored(q, request{"producer": "load"})
	active, _ := r.inSync(t)
	require.NoError(t, active.Pause())
	defer func() { _ = active.Wake() }()
	r.underLoad(q, func() {})
	require.NoError(t, active.Wake())
	r.underLoad(q, func() {})
	r.verify()
}

// handOver retries a switchover until it succeeds. On a busy machine, the standby may be briefly out of sync, or the
// coordinator unreachable, and the request is rejected.
func (r *run) handOver() {
	for start := time.Now(); ; {
		active, _ := r.inSync(r.t)
		_, err := pb.NewAdminServiceClient(active.Conn()).Switchover(r.t.Context(), &pb.SwitchoverRequest{})
		if err == nil {
			return
		}
		rejected := slices.Contains([]codes.Code{codes.FailedPrecondition, codes.Unavailable}, status.Code(err))
		if !rejected || time.Since(start) > bound {
			r.t.Errorf("switchover: %v", err)
			return
		}
	}
}

func switchovers(_ *testing.T, r *run) {
	q := r.queue("", nil)
	r.open("c", nil)
	r.consume("k", q, nil)
	r.stored(q, request{"producer": "load"})
	for range 3 {
		r.underLoad(q, r.handOver)
	}
	for range 1 + 3*2*many {
		d, _ := r.receive("k")
		r.answer("k", d, "ack", nil)
	}
	r.flush("k")
	r.requireIdle("k")
	r.verify()
}

func restart(t *testing.T, r *run) {
	q := r.queue("", nil)
	r.open("c", nil)
	r.consume("k", q, nil)
	r.stored(q, request{"producer": "load"})
	r.underLoad(q, func() {
		for _, n := range r.pair.Nodes {
			if err := n.Stop(); err != nil {
				t.Errorf("stop: %v", err)
			}
			if err := n.Start(); err != nil {
				t.Errorf("start: %v", err)
			}
			r.inSync(t)
		}
	})
	for range 1 + 2*many {
		d, _ := r.receive("k")
		r.answer("k", d, "ack", nil)
	}
	r.flush("k")
	r.requireIdle("k")
	r.verify()
}

func bothDown(t *testing.T, r *run) {
	q := r.queue("", nil)
	r.open("c", nil)
	r.stored(q, request{"producer": "load"})
	for _, n := range r.pair.Nodes {
		require.NoError(t, n.Kill())
	}
	r.open("late", nil) // this client cannot have sent the message when the timeout expires
	given := r.publish(q, request{"client": "late", "timeout_ms": 300})
	waiting := r.publish(q, request{"producer": "load"})
	got := r.recorded(given)
	require.NotNil(t, got.Error)
	require.Equal(t, "not-done", got.Error.Outcome)
	r.inSync(t)
	r.a.success("publish", r.recorded(waiting))
	r.verify()
}
