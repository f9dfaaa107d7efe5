// SPDX-License-Identifier: Apache-2.0

//go:build unix && deep

package amqp

import (
	"fmt"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// failovers returns the cases in which the active is killed.
func failovers() []testCase {
	return []testCase{
		{name: "the active is killed while publishing", long: true, run: killWhilePublishing},
		{name: "the active is killed while publishing to a dedup window", long: true, run: killUnderDedup},
		{
			name: "the active is killed while message IDs are resent", long: true, needs: []string{"resend"},
			run: killUnderResends,
		},
		{name: "the active is killed while consuming", long: true, run: killWhileConsuming},
		{name: "the active is killed while moving messages", long: true, needs: []string{"transact"}, run: killWhileMoving},
		{name: "the active is killed in a commit", long: true, needs: []string{"transact"}, run: killInCommit},
		{
			name: "the active is killed with a durable subscription", long: true, needs: []string{"durable"},
			run: killUnderDurable,
		},
	}
}

// tally records the client's result for each message, and the number of copies found.
type tally struct {
	reported map[string]string // "accepted" or "failed"
	found    map[string]int
	ids      map[string]bool // bodies with message IDs
}

// take records a found message.
func (a *tally) take(m *message) {
	a.found[m.Body]++
	if a.ids == nil {
		a.ids = map[string]bool{}
	}
	a.ids[m.Body+" "+m.MessageID] = true
}

// problems returns the violations: accepted messages that are missing, messages that were never sent, and, if once
// is set, duplicates. duplicated is the number of duplicated messages.
func (a *tally) problems(once bool) (all []string, duplicated int) {
	for body, reported := range a.reported {
		n := a.found[body]
		if reported == "accepted" && n == 0 {
			all = append(all, body+" was accepted, and is lost")
		}
		if n > 1 {
			duplicated++
			if once {
				all = append(all, fmt.Sprintf("%s was received %d times", body, n))
			}
		}
	}
	for body := range a.found {
		if _, ok := a.reported[body]; !ok {
			all = append(all, body+" was never sent")
		}
	}
	return all, duplicated
}

// Each violation of the delivery guarantees is reported.
func TestTallyReportsErrors(t *testing.T) {
	for name, c := range map[string]struct {
		reported map[string]string
		found    map[string]int
		once     bool
		bad      int
	}{
		"lost":              {map[string]string{"a": "accepted"}, map[string]int{}, false, 1},
		"duplicated":        {map[string]string{"a": "accepted"}, map[string]int{"a": 2}, true, 1},
		"may be duplicated": {map[string]string{"a": "accepted"}, map[string]int{"a": 2}, false, 0},
		"never sent":        {map[string]string{"a": "accepted"}, map[string]int{"a": 1, "b": 1}, false, 1},
		"failed, missing":   {map[string]string{"a": "failed"}, map[string]int{}, true, 0},
		"failed, stored":    {map[string]string{"a": "failed"}, map[string]int{"a": 1}, true, 0},
	} {
		got, _ := (&tally{reported: c.reported, found: c.found}).problems(c.once)
		require.Len(t, got, c.bad, name)
	}
}

// kill kills the active. The other node takes over while the client continues.
func (r *run) kill() {
	r.t.Helper()
	active, _ := r.inSync(r.t)
	require.NoError(r.t, active.Kill())
}

// killWhilePublishing: accepted messages are stored, and the client continues automatically.
func killWhilePublishing(r *run) {
	r.killWhilePublishingTo(r.queue("", nil))
}

// killUnderDedup: messages that the client resends after a failover are stored once, because the queue deduplicates
// them by message ID. In every second attempt, the standby is stopped first, so that it stores messages that the
// active has not accepted. LOCKSTEP_AMQP_KILLS sets the number of attempts.
func killUnderDedup(r *run) {
	q := r.queue("", &pb.QueueConfig{DedupWindow: durationpb.New(time.Hour)})
	r.open("c", nil)
	sum := &tally{reported: map[string]string{}, found: map[string]int{}}
	kills := attempts(r.t, 6)
	const batch = 200
	for n := range kills {
		active, standby := r.inSync(r.t)
		before := r.get(r.t, q).GetMessages()
		waiting := r.a.begin("send", with(onC, request{"to": q, "messages": bodies(batch*n, batch*n+batch)}))
		eventually(r.t, "some messages are stored", func() bool { return r.get(r.t, q).GetMessages() > before })
		if n%2 == 1 {
			require.NoError(r.t, standby.Pause())
			<-time.After(50 * time.Millisecond)
		}
		require.NoError(r.t, active.Kill())
		if n%2 == 1 {
			require.NoError(r.t, standby.Wake())
		}
		for i, o := range r.results(waiting, batch) {
			sum.reported[fmt.Sprintf("m%d", batch*n+i)] = o.Outcome
		}
	}
	r.inSync(r.t)
	discarded := r.get(r.t, q).GetDuplicates()
	r.drain(q, sum)
	problems, _ := sum.problems(true)
	require.Empty(r.t, problems)
	r.t.Logf("%d messages with %d kills: %d duplicates discarded", len(sum.reported), kills, discarded)
}

// attempts returns the number of kills in LOCKSTEP_AMQP_KILLS, or usual if it is not set.
func attempts(t *testing.T, usual int) int {
	t.Helper()
	env := os.Getenv("LOCKSTEP_AMQP_KILLS")
	if env == "" {
		return usual
	}
	kills, err := strconv.Atoi(env)
	require.NoError(t, err)
	return kills
}

func (r *run) killWhilePublishingTo(q string) {
	r.inSync(r.t)
	r.open("c", nil)
	sum := &tally{reported: map[string]string{}, found: map[string]int{}}
	send := func(n int) <-chan answer {
		return r.a.begin("send", with(onC, request{"to": q, "messages": bodies(10*n, 10*n+10)}))
	}
	const batches = 60
	failed := 0
	for n := range batches {
		waiting := send(n)
		if n == batches/3 {
			r.kill()
		}
		for i, o := range r.results(waiting, 10) {
			sum.reported[fmt.Sprintf("m%d", 10*n+i)] = o.Outcome
			if o.Outcome != "accepted" {
				failed++
			}
		}
	}
	r.inSync(r.t)
	r.drain(q, sum)
	problems, duplicated := sum.problems(false)
	require.Empty(r.t, problems)
	require.Less(r.t, failed, 10*batches/4, "the client did not continue")
	copies := 0
	for _, n := range sum.found {
		copies += n
	}
	r.t.Logf("%d messages: failed %d, stored twice %d; %d copies have the same id", 10*batches, failed, duplicated,
		copies-len(sum.ids))
}

// results returns the client's result for each message of a batch. If the batch failed, all its messages failed.
func (r *run) results(waiting <-chan answer, n int) []outcome {
	r.t.Helper()
	got := r.a.await(waiting)
	if got.Error != nil {
		all := make([]outcome, n)
		for i := range all {
			all[i] = outcome{Outcome: "failed", Text: got.Error.Message}
		}
		return all
	}
	out := decode(r.t, got)
	require.Len(r.t, out.Results, n)
	return out.Results
}

// drain consumes all messages of a queue with a separate client.
func (r *run) drain(q string, sum *tally) {
	r.t.Helper()
	r.open("drain", nil)
	k := request{"client": "drain", "consumer": "all"}
	r.a.do("consume", with(k, request{"from": q}))
	r.until(q+" is drained", func() bool {
		one := r.a.do("receive", with(k, request{"timeout_ms": 200}))
		if one.Message == nil {
			return r.get(r.t, q).GetMessages() == 0
		}
		r.answer(k, one.Delivery, "accept")
		sum.take(one.Message)
		return false
	})
}

// until calls step until it returns true.
func (r *run) until(label string, step func() bool) {
	r.t.Helper()
	for end := time.Now().Add(bound); !step(); {
		require.True(r.t, time.Now().Before(end), label)
	}
}

// killWhileConsuming: a consumer receives all messages across a failover.
func killWhileConsuming(r *run) {
	q := r.queue("", nil)
	r.inSync(r.t)
	r.open("c", nil)
	const messages = 300
	r.send(with(onC, request{"to": q}), bodies(0, messages)...)
	sum := &tally{reported: map[string]string{}, found: map[string]int{}}
	for _, m := range bodies(0, messages) {
		sum.reported[m["body"].(string)] = "accepted"
	}
	r.a.do("consume", with(ofC, request{"from": q}))
	received := 0
	r.until("all messages were received", func() bool {
		one, failed := r.a.try("receive", with(ofC, request{"timeout_ms": 500}))
		if failed != "" || one.Message == nil {
			return len(sum.found) == messages && r.get(r.t, q).GetMessages() == 0
		}
		sum.found[one.Message.Body]++
		received++
		if received == messages/3 { // clients do not wait for the confirmation of an acknowledgement
			eventually(r.t, "the other messages are acknowledged", func() bool {
				return r.get(r.t, q).GetMessages() == messages-messages/3+1
			})
			r.kill()
		}
		_, _ = r.a.try("answer", with(ofC, request{"delivery": one.Delivery, "how": "accept"}))
		return false
	})
	problems, duplicated := sum.problems(false)
	require.Empty(r.t, problems)
	require.Less(r.t, duplicated, messages/4, "an accepted message was redelivered")
	r.t.Logf("%d messages: delivered twice %d", messages, duplicated)
	r.inSync(r.t)
}

// killWhileMoving: a transacted session moves messages from one queue to another. Each message is moved exactly once.
func killWhileMoving(r *run) {
	in, out := r.queue(".in", nil), r.queue(".out", nil)
	r.inSync(r.t)
	r.open("p", nil)
	const messages, each = 200, 5
	r.send(request{"client": "p", "to": in}, bodies(0, messages)...)
	sum := &tally{reported: map[string]string{}, found: map[string]int{}}
	for _, m := range bodies(0, messages) {
		sum.reported[m["body"].(string)] = "accepted"
	}
	r.open("c", nil)
	tx := request{"client": "c", "session": "t"}
	k := with(tx, request{"consumer": "k"})
	r.a.do("session", with(tx, request{"transacted": true}))
	r.a.do("consume", with(k, request{"from": in}))
	commits, failures, kills := 0, 0, 0
	end := time.Now().Add(2 * bound)
	for r.get(r.t, in).GetMessages() > 0 {
		require.True(r.t, time.Now().Before(end), "%d commits, %d failures", commits, failures)
		if (commits+1)%(messages/each/3) == 0 && kills < 2 && commits > kills*(messages/each/3) {
			kills++
			waiting := r.a.begin("receive", with(k, request{"timeout_ms": 500}))
			r.kill()
			r.a.await(waiting)
		}
		if r.move(tx, k, out, each) {
			commits++
			continue
		}
		failures++
		// Qpid JMS neither acknowledges nor releases the messages received in a transaction with an unknown outcome,
		// until its consumer is closed.
		_, _ = r.a.try("consumer_close", k)
		r.a.do("consume", with(k, request{"from": in}))
	}
	require.Equal(r.t, 2, kills)
	r.inSync(r.t)
	r.drain(out, sum)
	problems, _ := sum.problems(true)
	require.Empty(r.t, problems)
	r.t.Logf("%d messages in %d commits, %d ended otherwise, with %d kills", messages, commits, failures, kills)
}

// move moves messages in one transaction, and reports whether the commit succeeded.
func (r *run) move(tx, k request, out string, each int) bool {
	r.t.Helper()
	if _, good := r.stage(tx, k, out, each); good {
		_, failed := r.a.try("commit", tx)
		return failed == ""
	}
	_, _ = r.a.try("rollback", tx)
	return false
}

// stage moves up to each available messages in a transaction that remains open. good is false if a request failed.
func (r *run) stage(tx, k request, out string, each int) (n int, good bool) {
	r.t.Helper()
	for ; n < each; n++ {
		one, failed := r.a.try("receive", with(k, request{"timeout_ms": 500}))
		if failed != "" {
			return n, false
		}
		if one.Message == nil {
			return n, true
		}
		sent, failed := r.a.try("send", with(tx, request{"to": out, "messages": []request{{"body": one.Message.Body}}}))
		if failed != "" || sent.Results[0].Outcome != "accepted" {
			return n, false
		}
	}
	return n, true
}

// killInCommit: a commit in flight when the active is killed is either executed or not. The client receives the
// result, or an unknown outcome. In every second attempt, the standby is stopped first, so that the commit waits. The
// standby then executes the part that it received before the active was killed.
func killInCommit(r *run) {
	in, out := r.queue(".in", nil), r.queue(".out", nil)
	r.inSync(r.t)
	const kills, each = 4, 3
	r.open("p", nil)
	r.send(request{"client": "p", "to": in}, bodies(0, kills*each)...)
	sum := &tally{reported: map[string]string{}, found: map[string]int{}}
	for _, m := range bodies(0, kills*each) {
		sum.reported[m["body"].(string)] = "accepted"
	}
	r.open("c", nil)
	tx := request{"client": "c", "session": "t"}
	k := with(tx, request{"consumer": "k"})
	r.a.do("session", with(tx, request{"transacted": true}))
	r.a.do("consume", with(k, request{"from": in}))
	committed, executed, not := 0, 0, 0
	for n := range kills {
		active, standby := r.inSync(r.t)
		before := r.get(r.t, in).GetMessages()
		for { // messages received before the connection was lost are unusable
			if n, good := r.stage(tx, k, out, each); good && n == each {
				break
			}
			_, _ = r.a.try("rollback", tx)
			_, _ = r.a.try("consumer_close", k)
			_, _ = r.a.try("consume", with(k, request{"from": in}))
		}
		if n%2 == 1 {
			require.NoError(r.t, standby.Pause())
		}
		waiting := r.a.begin("commit", tx)
		<-time.After(time.Duration(n) * 5 * time.Millisecond) // some kills occur before the commit, and some after it
		require.NoError(r.t, active.Kill())
		if n%2 == 1 {
			require.NoError(r.t, standby.Wake())
		}
		failed := r.a.await(waiting).Error
		left := r.get(r.t, in).GetMessages()
		require.Contains(r.t, []uint64{before, before - each}, left, "a part of the transaction was executed")
		switch {
		case failed == nil:
			committed++
			require.Equal(r.t, before-each, left, "the commit was acknowledged")
		case left < before:
			executed++
		default:
			not++
		}
		if failed != nil {
			_, _ = r.a.try("consumer_close", k)
			_, _ = r.a.try("consume", with(k, request{"from": in}))
		}
	}
	r.inSync(r.t)
	for end := time.Now().Add(bound); r.get(r.t, in).GetMessages() > 0; {
		require.True(r.t, time.Now().Before(end), "messages remain in the first queue")
		if !r.move(tx, k, out, each) {
			_, _ = r.a.try("consumer_close", k)
			_, _ = r.a.try("consume", with(k, request{"from": in}))
		}
	}
	r.drain(out, sum)
	problems, _ := sum.problems(true)
	require.Empty(r.t, problems)
	r.t.Logf("%d commits under a kill: acknowledged %d, executed without response %d, not executed %d", kills,
		committed, executed, not)
}

// killUnderDurable: a durable subscription receives all messages while the roles change.
func killUnderDurable(r *run) {
	name := r.topic("")
	r.inSync(r.t)
	r.open("c", request{"client_id": r.queueName(".id")})
	r.a.do("consume", with(ofC, request{"from": name, "kind": "topic", "durable": "audit"}))
	r.open("p", nil)
	sum := &tally{reported: map[string]string{}, found: map[string]int{}}
	for n := range 10 {
		waiting := r.a.begin("send", request{"client": "p", "to": name, "kind": "topic", "messages": bodies(10*n, 10*n+10)})
		if n == 4 {
			r.kill()
		}
		for i, o := range r.results(waiting, 10) {
			sum.reported[fmt.Sprintf("m%d", 10*n+i)] = o.Outcome
		}
	}
	r.until("the subscription has received all messages", func() bool {
		one, failed := r.a.try("receive", with(ofC, request{"timeout_ms": 500}))
		if failed != "" || one.Message == nil {
			return r.get(r.t, name).GetMessages() == 0
		}
		_, _ = r.a.try("answer", with(ofC, request{"delivery": one.Delivery, "how": "accept"}))
		sum.found[one.Message.Body]++
		return false
	})
	problems, _ := sum.problems(false)
	require.Empty(r.t, problems)
	r.inSync(r.t)
}
