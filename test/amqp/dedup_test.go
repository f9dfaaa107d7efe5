// SPDX-License-Identifier: Apache-2.0

//go:build unix && deep

package amqp

import (
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/test/cluster"
)

// resenders is the number of connections that publish each message ID. sendBatch is the number of messages of a
// request. sendsInFlight is the number of concurrent requests of a connection.
const resenders, sendBatch, sendsInFlight = 2, 100, 4

// killUnderResends: a queue with a dedup window stores each message ID once. Two connections publish all IDs in
// different orders, and resend messages with an unknown outcome, while the active is killed repeatedly.
// LOCKSTEP_PUBLISHES=1000000 sets the number of publishes, and LOCKSTEP_KILLS=20 sets the number of kills, which are
// distributed over the publishes.
func killUnderResends(r *run) {
	publishes, err := cluster.FromEnv("LOCKSTEP_PUBLISHES", 4_000, strconv.Atoi)
	require.NoError(r.t, err)
	kills, err := cluster.FromEnv("LOCKSTEP_KILLS", 2, strconv.Atoi)
	require.NoError(r.t, err)
	q := r.queue("", &pb.QueueConfig{DedupWindow: durationpb.New(24 * time.Hour)})
	ids := publishes / resenders
	all, sum := make([]*resender, resenders), &tally{reported: map[string]string{}, found: map[string]int{}}
	for n := range all {
		name := fmt.Sprintf("c%d", n)
		r.open(name, nil)
		p := &resender{run: r, request: request{"client": name, "to": q, "async": n > 0}, sum: sum}
		for i := range ids {
			p.left = append(p.left, fmt.Sprintf("m%d", (i+n*ids/resenders)%ids))
		}
		all[n] = p
	}
	for n := range kills + 1 {
		active, _ := r.inSync(r.t)
		publishAll(all, ids*resenders*(n+1)/(kills+1))
		if n < kills {
			require.NoError(r.t, active.Kill())
		}
	}
	r.inSync(r.t)
	discarded := r.get(r.t, q).GetDuplicates()
	for _, m := range r.stored(r.t, q) {
		id := m.GetMessage().GetMessageId()
		require.Equal(r.t, id, string(m.GetMessage().GetBody()))
		sum.found[id]++
	}
	problems, _ := sum.problems(true)
	require.Empty(r.t, problems)
	require.Len(r.t, sum.found, ids)
	require.GreaterOrEqual(r.t, discarded, uint64(ids*(resenders-1)))
	r.t.Logf("%d publishes of %d message IDs, %d kills: each ID is stored once; %d with an unknown outcome resent, %d "+
		"duplicates discarded", ids*resenders, ids, kills, all[0].resent+all[1].resent, discarded)
}

// publishAll publishes until the clients have reported the given number of accepted messages in total. Further
// messages may then be in flight.
func publishAll(all []*resender, accepted int) {
	for {
		sum := 0
		for _, p := range all {
			p.fill()
			sum += p.accepted
		}
		if sum >= accepted {
			return
		}
		for _, p := range all {
			p.take()
		}
	}
}

// resender publishes message IDs on a connection until they are accepted.
type resender struct {
	*run
	request          request
	sum              *tally
	left             []string // IDs that are neither in flight nor accepted
	inFlight         []sending
	accepted, resent int
}

type sending struct {
	ids     []string
	waiting <-chan answer
}

// fill sends requests until sendsInFlight requests are in flight, or no ID is left.
func (p *resender) fill() {
	for len(p.inFlight) < sendsInFlight && len(p.left) > 0 {
		ids := p.left[:min(sendBatch, len(p.left))]
		p.left = p.left[len(ids):]
		var messages []request
		for _, id := range ids {
			messages = append(messages, request{"body": id, "message_id": id})
		}
		waiting := p.a.begin("send", with(p.request, request{"messages": messages}))
		p.inFlight = append(p.inFlight, sending{ids, waiting})
	}
}

// take receives and records the response to the oldest request in flight.
func (p *resender) take() {
	p.t.Helper()
	if len(p.inFlight) == 0 {
		return
	}
	s := p.inFlight[0]
	p.inFlight = p.inFlight[1:]
	var unknown []string
	for i, o := range p.results(s.waiting, len(s.ids)) {
		if o.Outcome == "accepted" {
			p.accepted++
			p.sum.reported[s.ids[i]] = o.Outcome
			continue
		}
		unknown = append(unknown, s.ids[i])
		p.resent++
		require.Less(p.t, p.resent, 10_000, o.Text)
	}
	p.left = slices.Concat(unknown, p.left)
}
