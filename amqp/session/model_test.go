// SPDX-License-Identifier: Apache-2.0

package session

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/amqp/wire"
)

// model is a client and a broker with a Conn between them. Frames of both directions are queued, so that they cross.
type model struct {
	t       testing.TB
	rng     *rand.Rand
	p       *peer
	client  *client
	pending []*Link     // attached and not answered
	closing []func()    // pending responses of the broker
	open    []*Delivery // not settled by the broker
	brokers map[string]*brokerLink
	ended   bool // no new work

	outcomes map[string]wire.DeliveryState // of the broker's messages, by the client
	got      map[string]wire.DeliveryState // as reported to the broker
	states   map[string]wire.DeliveryState // of the client's messages, by the broker
	reported map[string]int                // number of outcomes reported to the client
	counts   map[string]int
}

// brokerLink is the broker's state of a link.
type brokerLink struct {
	*Link
	all      []string          // messages sent or received
	refs     map[uint64]string // sent and not settled
	seq      uint64
	draining bool
	gone     bool // ended by either side
	client   *clientLink
}

func newModel(t testing.TB, seed uint64) *model {
	rng := rand.New(rand.NewPCG(seed, 1))
	m := &model{
		t: t, rng: rng, brokers: map[string]*brokerLink{}, outcomes: map[string]wire.DeliveryState{},
		got: map[string]wire.DeliveryState{}, states: map[string]wire.DeliveryState{}, reported: map[string]int{},
		counts: map[string]int{},
	}
	m.p = newPeer(t, Options{
		firstID: -uint32(rng.IntN(50)), IncomingWindow: uint32(2 + rng.IntN(30)), MaxUnsettled: 5 + rng.IntN(60),
		ChannelMax: 3, HandleMax: 4,
	})
	m.p.on = m.event
	m.client = &client{m: m, rng: rng, sessions: map[uint16]*clientSession{}, byNode: map[uint16]*clientSession{}}
	m.client.toNode = append(m.client.toNode, &wire.Frame{
		Body: &wire.Open{ContainerID: "c", MaxFrameSize: 512, ChannelMax: uint16(3 + rng.IntN(3))},
	})
	return m
}

// exclude removes a link from later checks, because both sides may discard its deliveries.
func (m *model) exclude(name string) {
	if b := m.brokers[name]; b != nil {
		b.gone = true
	}
}

func (m *model) event(e Event) bool {
	m.counts[strings.TrimPrefix(fmt.Sprintf("%T", e), "*session.")]++
	switch e := e.(type) {
	case *Attached:
		m.pending = append(m.pending, e.Link)
	case *Delivery:
		b := m.brokers[e.Link.Peer().Name]
		b.all = append(b.all, string(e.Payload))
		d := *e
		d.Payload = slices.Clone(e.Payload)
		m.open = append(m.open, &d)
	case *Credit:
		b := m.brokers[e.Link.Peer().Name]
		b.draining = e.Drain
	case *Disposed:
		m.disposed(e)
	case *Detached:
		m.exclude(e.Link.Peer().Name)
		if !e.Ended {
			m.closing = append(m.closing, func() { e.Link.Detach(false, nil) })
		}
	case *Ended:
		require.False(m.t, e.Ended, "%v %v", e.Err, m.p.c.err)
		m.closing = append(m.closing, func() { e.Session.End(nil) })
	case *Closed:
		require.Fail(m.t, "closed", "%v", e.Err)
	default:
		return false
	}
	return true
}

func (m *model) disposed(e *Disposed) {
	b := m.brokers[e.Link.Peer().Name]
	m.counts["outcomes"] += len(e.Refs)
	for i, ref := range e.Refs {
		text, ok := b.refs[ref]
		require.True(m.t, ok, "an outcome of a delivery not sent or already settled")
		require.NotContains(m.t, m.got, text)
		m.got[text] = e.State
		delete(b.refs, ref)
		if !e.Settled {
			e.Link.Settle(e.First+uint32(i), e.State)
		}
	}
}

// broker executes one random action of the broker.
func (m *model) broker() {
	rng := m.rng
	if len(m.pending) > 0 && (m.ended || rng.IntN(2) == 0) {
		l := m.pending[0]
		m.pending = m.pending[1:]
		if l.Accept(Reply{}) {
			m.accepted(l)
		}
		return
	}
	if n := len(m.closing); n > 0 && (m.ended || rng.IntN(2) == 0) {
		i := rng.IntN(n)
		m.closing[i]()
		m.closing = slices.Delete(m.closing, i, i+1)
		return
	}
	if n := len(m.open); n > 0 && (m.ended || rng.IntN(2) == 0) {
		i := min(rng.IntN(n), rng.IntN(n))
		d := m.open[i]
		m.open = slices.Delete(m.open, i, i+1)
		state := []wire.DeliveryState{wire.Accepted{}, wire.Accepted{}, wire.Released{}}[rng.IntN(3)]
		if !d.Settled && !d.Link.Gone() {
			m.states[string(d.Payload)] = state
		}
		d.Link.Settle(d.ID, state)
		return
	}
	b := m.anyLink()
	if b == nil || b.Gone() {
		return
	}
	switch {
	case !b.Sender():
		if rng.IntN(10) == 0 && !m.ended {
			b.Window(uint32(rng.IntN(8)))
		}
	case b.draining && rng.IntN(2) == 0:
		b.draining = false
		b.Drained()
	case m.ended:
	case rng.IntN(200) == 0:
		m.exclude(b.Peer().Name)
		b.Detach(false, nil)
	case rng.IntN(60) == 0:
		for _, ref := range b.Recall() {
			text := b.refs[ref]
			b.all = slices.DeleteFunc(b.all, func(s string) bool { return s == text })
			delete(b.refs, ref)
			m.counts["recalled"]++
		}
	case b.sender.count() < 4:
		b.seq++
		m.counts["sent"]++
		text := fmt.Sprintf("%s.%d.%s", b.Peer().Name, b.seq, strings.Repeat("y", rng.IntN(40)*rng.IntN(40)))
		settled := rng.IntN(4) == 0
		b.all = append(b.all, text)
		b.refs[b.seq] = text
		require.NoError(m.t, b.Send(&Message{Ref: b.seq, Settled: settled, Payload: []byte(text)}))
		if settled && b.sender.count() == 0 {
			delete(b.refs, b.seq)
		}
	}
}

func (m *model) accepted(l *Link) {
	b := &brokerLink{Link: l, refs: map[uint64]string{}}
	for _, s := range m.client.sessions {
		for _, cl := range s.links {
			if cl.name == l.Peer().Name {
				b.client = cl
			}
		}
	}
	m.brokers[l.Peer().Name] = b
	if b.client == nil || b.client.detached || b.client.s.ended {
		b.gone = true
	}
	if !l.Sender() {
		l.Window(uint32(1 + m.rng.IntN(8)))
	}
}

func (m *model) anyLink() *brokerLink {
	names := make([]string, 0, len(m.brokers))
	for name, b := range m.brokers {
		if !b.Gone() {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return nil
	}
	slices.Sort(names)
	return m.brokers[names[m.rng.IntN(len(names))]]
}

// user executes one random action of the application.
func (m *model) user() {
	c, rng := m.client, m.rng
	if !m.ended && rng.IntN(20) == 0 {
		c.begin()
	}
	for _, channel := range sortedKeys(c.sessions) {
		s := c.sessions[channel]
		if !s.begun {
			if !m.ended && rng.IntN(4) == 0 {
				c.attach(s) // before the response to the begin
			}
			continue
		}
		switch {
		case !m.ended && rng.IntN(800) == 0:
			c.end(s)
		case !m.ended && rng.IntN(20) == 0:
			c.attach(s)
		case m.ended || rng.IntN(4) == 0:
			c.flow(s, nil)
		}
		if rng.IntN(2) == 0 {
			c.settle(s)
		}
		for _, handle := range sortedKeys(s.links) {
			l := s.links[handle]
			switch {
			case !m.ended && rng.IntN(300) == 0:
				c.detach(l)
			case l.sender && (!m.ended || l.writing != nil):
				c.write(l)
			case m.ended || rng.IntN(5) == 0:
				c.flow(s, l)
			}
		}
	}
}

func sortedKeys[K uint16 | uint32, V any](of map[K]V) []K {
	keys := make([]K, 0, len(of))
	for k := range of {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// network transfers a frame, or takes the output.
func (m *model) network() {
	switch m.rng.IntN(3) {
	case 0:
		m.client.toClient = append(m.client.toClient, m.p.take()...)
	case 1:
		if c := m.client; len(c.toClient) > 0 {
			f := c.toClient[0]
			c.toClient = c.toClient[1:]
			c.receive(f)
		}
	case 2:
		if c := m.client; len(c.toNode) > 0 {
			f := c.toNode[0]
			c.toNode = c.toNode[1:]
			m.p.err = m.p.c.Receive(f, m.p.now)
			m.p.drain()
			require.NoError(m.t, m.p.err)
		}
	}
}

// check compares both ends of each link: the received messages are a prefix of the sent ones, or all of them if whole.
func (m *model) check(whole bool) {
	for name, b := range m.brokers {
		if b.client == nil {
			continue
		}
		sent, received := b.all, b.client.all
		if !b.Sender() {
			sent, received = received, sent
		}
		require.LessOrEqual(m.t, len(received), len(sent), name)
		require.True(m.t, slices.Equal(sent[:len(received)], received), "%s: %q from %q", name, received, sent)
		if whole && !b.gone && !b.Gone() {
			require.Len(m.t, received, len(sent), "%s: %d wait, credit %d", name, b.sender.count(), b.credit)
			for _, text := range b.refs { // presettled messages that have waited
				require.NotContains(m.t, m.outcomes, text)
			}
		}
	}
}

var modelSeeds = flag.Int("seeds", 25, "number of random schedules of TestModel")

// For any interleaving of frames, broker and client, no message is lost, duplicated or reordered on a link, and every
// outcome arrives once. No window or credit is exceeded, and no state remains at the end.
func TestModel(t *testing.T) {
	counts := map[string]int{}
	seeds := *modelSeeds
	if testing.Short() {
		seeds = min(seeds, 10)
	}
	for seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			m := newModel(t, uint64(seed))
			m.run(3000)
			for k, n := range m.counts {
				counts[k] += n
			}
		})
	}
	t.Log(counts)
	for _, k := range []string{
		"Began", "Attached", "Delivery", "Credit", "Disposed", "Detached", "Ended", "drained", "sent", "recalled", "outcomes",
	} {
		require.Positive(t, counts[k], "%s did not occur", k)
	}
}

func (m *model) run(steps int) {
	for range steps {
		switch m.rng.IntN(4) {
		case 0:
			m.user()
		case 1:
			m.broker()
		default:
			for range 4 {
				m.network()
			}
		}
		if m.rng.IntN(50) == 0 {
			m.check(false)
		}
	}
	m.ended = true
	for range 100 { // frames in flight arrive, and all deliveries are settled
		m.user()
		for range 30 {
			m.broker()
		}
		for len(m.client.toNode) > 0 || len(m.client.toClient) > 0 || m.p.c.Buffered() > 0 {
			m.network()
		}
		m.client.toClient = append(m.client.toClient, m.p.take()...)
	}
	m.check(true)
	for text, state := range m.states {
		if name, _, _ := strings.Cut(text, "."); !m.brokers[name].gone {
			require.Equal(m.t, 1, m.reported[text], "%s was settled as %v", text, state)
		}
	}
	for text, state := range m.outcomes {
		if name, _, _ := strings.Cut(text, "."); !m.brokers[name].gone {
			require.Equal(m.t, state, m.got[text], text)
		}
	}
	c := m.p.c
	require.Zero(m.t, c.partial)
	for _, s := range c.channels {
		if s != nil {
			require.Zero(m.t, s.in.live)
			require.LessOrEqual(m.t, len(s.out.ring)+len(s.out.old), 1024)
		}
	}
	for _, s := range m.client.sessions {
		m.client.end(s)
	}
	for range 10 {
		m.broker()
		for range 100 {
			m.network()
		}
	}
	require.Empty(m.t, m.client.sessions)
	require.Zero(m.t, c.unsent)
	require.Zero(m.t, c.links)
	require.Empty(m.t, c.names)
	require.Empty(m.t, c.remote)
}
