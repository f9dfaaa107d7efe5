// SPDX-License-Identifier: Apache-2.0

//go:build unix

package sites

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"

	"github.com/lockstep-mq/lockstep/client"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/server/node"
	"github.com/lockstep-mq/lockstep/test/cluster"
	"github.com/lockstep-mq/lockstep/test/harness/historycheck"
	"github.com/lockstep-mq/lockstep/test/simnet"
	"github.com/lockstep-mq/lockstep/test/simpair"
	"github.com/lockstep-mq/lockstep/test/tier"
)

var (
	seedsFlag = flag.Int("seeds", 0, "number of seeds per test; default 100 with -tags deep, otherwise 5")
	firstFlag = flag.Uint64("first", 1, "first seed")
	seedFlag  = flag.Uint64("seed", 0, "run only this seed")
)

const (
	port = 7420
	// betweenSites is the latency of a healthy link between the sites.
	betweenSites = 20 * time.Millisecond
	// callLimit is the timeout of requests for the state of nodes.
	callLimit = 500 * time.Millisecond
	// recoveryLimit is the limit for the time until both pairs are in sync and replicate after the last fault.
	recoveryLimit = time.Minute
	poll          = 50 * time.Millisecond
	// switchLimit, switchoverLimit and promotionLimit are the timeouts of an operator.
	switchLimit     = 30 * time.Second
	switchoverLimit = 5 * time.Second
	promotionLimit  = 10 * time.Second
	// everyLabel is the minimum number of seeds with which each label of a test must have been counted.
	everyLabel = 100
	// epochBits is the bit position of the epoch in the terms that conns report.
	epochBits = 32
)

// runSeeds runs a simulation per seed, as parallel subtests. With everyLabel seeds, each label must have been counted.
func runSeeds(t *testing.T, labels []string, simulate func(w *world) error) {
	t.Helper()
	total := &totals{}
	first, n := *firstFlag, *seedsFlag
	if n == 0 {
		n = tier.Count(5, 100)
	}
	if *seedFlag != 0 {
		first, n = *seedFlag, 1
	}
	t.Run("seed", func(t *testing.T) {
		for seed := first; seed < first+uint64(n); seed++ {
			t.Run(fmt.Sprint(seed), func(t *testing.T) {
				t.Parallel()
				simpair.Test(t, func(t *testing.T, sim *simpair.World) {
					w := newWorld(sim, seed)
					err := simulate(w)
					if err != nil {
						test, _, _ := strings.Cut(t.Name(), "/")
						t.Errorf("%v\n\nrepeat: go test ./test/sites -run %s -seed=%d -v", err, test, seed)
					}
					if err != nil || *seedFlag != 0 {
						t.Log(strings.Join(w.notes, "\n"))
					}
					total.add(w)
				})
			})
		}
	})
	t.Log(total)
	if total.seeds >= everyLabel {
		for _, label := range labels {
			if total.count[label] == 0 {
				t.Errorf("never occurred in %d seeds, and so was not tested: %s", total.seeds, label)
			}
		}
	}
}

// totals counts the events of all seeds.
type totals struct {
	mu    sync.Mutex // guards all fields
	seeds int
	count map[string]int
}

func (s *totals) add(w *world) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.count == nil {
		s.count = map[string]int{}
	}
	s.seeds++
	for label, n := range w.count {
		s.count[label] += n
	}
}

func (s *totals) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	parts := []string{fmt.Sprintf("%d seeds", s.seeds)}
	for _, label := range slices.Sorted(maps.Keys(s.count)) {
		parts = append(parts, fmt.Sprintf("%s %d", label, s.count[label]))
	}
	return strings.Join(parts, "; ")
}

// member is a node of a site. Only the goroutine of the test uses node and up.
type member struct {
	name, host, address string
	node                *simpair.Node
	up                  bool
}

type site struct {
	name    string
	members [2]*member
}

// world is one simulation: two pairs and their clients.
type world struct {
	*simpair.World

	seed    uint64
	began   time.Time
	sites   [2]*site
	conns   map[string]*grpc.ClientConn // by address
	running sync.WaitGroup              // requests of operators

	mu        sync.Mutex // guards the fields below
	notes     []string
	count     map[string]int
	takeovers []*pb.TakeoverRequest // possibly sent by the primaries of switches
}

func newWorld(sim *simpair.World, seed uint64) *world {
	w := &world{
		World: sim, seed: seed, began: time.Now(), conns: map[string]*grpc.ClientConn{}, count: map[string]int{},
	}
	within := rand.New(rand.NewPCG(seed, 1))
	for i, name := range []string{"east", "west"} {
		s := &site{name: name}
		for k := range s.members {
			m := &member{name: fmt.Sprintf("%s-%c", name, 'a'+k)}
			m.host = w.Host(m.name)
			m.address = net.JoinHostPort(m.host, fmt.Sprint(port))
			s.members[k] = m
			w.conns[m.address] = w.Connect(m.address, grpc.WithChainUnaryInterceptor(epochInTerm))
		}
		w.setDelay(s.members[0], s.members[1], time.Duration(within.Int64N(int64(time.Millisecond))))
		w.sites[i] = s
	}
	w.eachLink(func(a, b *member) { w.setDelay(a, b, betweenSites) })
	return w
}

// epochInTerm adds the epoch of the site to the term that a node reports, so that terms of both sites are comparable.
func epochInTerm(
	ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, call grpc.UnaryInvoker, o ...grpc.CallOption,
) error {
	err := call(ctx, method, req, reply, cc, o...)
	if st, is := reply.(*pb.GetStatusResponse); is && err == nil && st.GetPair() != nil {
		st.Pair.Term |= st.GetSite().GetEpoch() << epochBits
	}
	return err
}

func (w *world) setDelay(a, b *member, d time.Duration) {
	for _, way := range simnet.Both(a.host, b.host) {
		w.Net.Change(way, func(l *simnet.Link) { l.Delay = d })
	}
}

// eachLink calls f for all links between the sites.
func (w *world) eachLink(f func(a, b *member)) {
	for _, a := range w.sites[0].members {
		for _, b := range w.sites[1].members {
			f(a, b)
		}
	}
}

// start starts both pairs, and makes west the replica of east.
func (w *world) start() {
	w.T.Helper()
	for i, s := range w.sites {
		other := w.sites[1-i]
		for k, m := range s.members {
			c := w.PairConfig(m.name)
			c.Coordinator.Etcd.Prefix = "/" + s.name
			c.Listen, c.Insecure = m.address, true
			c.Site.Name, c.Site.Remote = s.name, []string{other.members[0].address, other.members[1].address}
			m.node, m.up = w.Start(c, node.Options{}), true
			if k == 0 {
				m.node.WaitFor(pb.Role_ROLE_ACTIVE_ALONE)
			}
		}
		w.WaitInSync(s.members[0].node, s.members[1].node)
	}
	_, err := w.siteService(w.sites[1].members[0]).DemoteSite(w.T.Context(), &pb.DemoteSiteRequest{})
	require.NoError(w.T, err)
	w.note("started")
}

// note records an event.
func (w *world) note(format string, args ...any) {
	text := fmt.Sprintf("%10v  %s", time.Since(w.began).Round(time.Microsecond), fmt.Sprintf(format, args...))
	w.mu.Lock()
	defer w.mu.Unlock()
	w.notes = append(w.notes, text)
}

func (w *world) counted(label string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.count[label]++
}

func sleep(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(max(d, 0))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

func (w *world) siteService(m *member) pb.SiteServiceClient {
	return pb.NewSiteServiceClient(w.conns[m.address])
}

// status returns the status of a node; nil if it does not respond.
func (w *world) status(ctx context.Context, m *member) *pb.GetStatusResponse {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	st, err := pb.NewAdminServiceClient(w.conns[m.address]).GetStatus(ctx, &pb.GetStatusRequest{})
	if err != nil {
		return nil
	}
	return st
}

// active returns the active node and the other node of a site. Both are nil if no node is active.
func (w *world) active(ctx context.Context, s *site) (active, other *member) {
	term := uint64(0)
	for k, m := range s.members {
		st := w.status(ctx, m)
		if r := st.GetRole(); (r == pb.Role_ROLE_ACTIVE || r == pb.Role_ROLE_ACTIVE_ALONE) &&
			st.GetPair().GetTerm() >= term {
			active, other, term = m, s.members[1-k], st.GetPair().GetTerm()
		}
	}
	return active, other
}

// siteOf returns the state of the sites as reported by the active of a site; nil if no active responds.
func (w *world) siteOf(ctx context.Context, s *site) *pb.GetSiteResponse {
	m, _ := w.active(ctx, s)
	if m == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	resp, err := w.siteService(m).GetSite(ctx, &pb.GetSiteRequest{})
	if err != nil {
		return nil
	}
	return resp
}

// primary returns the primary site and the other site. Both are nil if no site reports that it is the primary.
func (w *world) primary(ctx context.Context) (primary, replica *site) {
	epoch := uint64(0)
	for i, s := range w.sites {
		st := w.siteOf(ctx, s).GetSite()
		if st.GetRole() == pb.SiteRole_SITE_ROLE_PRIMARY && st.GetEpoch() >= epoch {
			primary, replica, epoch = s, w.sites[1-i], st.GetEpoch()
		}
	}
	return primary, replica
}

// settled waits until both pairs are in sync, and the replica has everything that the primary has.
func (w *world) settled(ctx context.Context) (primary, replica *site, err error) {
	ctx, cancel := context.WithTimeout(ctx, recoveryLimit)
	defer cancel()
	for ctx.Err() == nil {
		if primary, replica = w.primary(ctx); primary != nil && w.inSync(ctx, primary) && w.inSync(ctx, replica) &&
			w.replicated(ctx, primary, replica) {
			return primary, replica, nil
		}
		sleep(ctx, poll)
	}
	return nil, nil, fmt.Errorf("not recovered within %v:\n%s", recoveryLimit, w.describe())
}

func (w *world) inSync(ctx context.Context, s *site) bool {
	active, other := w.active(ctx, s)
	return active != nil && w.status(ctx, active).GetRole() == pb.Role_ROLE_ACTIVE &&
		w.status(ctx, other).GetRole() == pb.Role_ROLE_STANDBY
}

func (w *world) replicated(ctx context.Context, primary, replica *site) bool {
	end := w.siteOf(ctx, primary).GetSite().GetApplied()
	is := w.siteOf(ctx, replica)
	r := is.GetReplication()
	return end != nil && is.GetSite().GetRole() == pb.SiteRole_SITE_ROLE_REPLICA && r.GetConnected() &&
		r.GetPrimaryEnd().GetLsn() >= end.GetLsn() && r.GetLagRecords() == 0
}

// describe returns the states of all nodes.
func (w *world) describe() string {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var lines []string
	for _, s := range w.sites {
		for _, m := range s.members {
			st := w.status(ctx, m)
			lines = append(lines, fmt.Sprintf("%s: %v (%s), term %d, site: %v", m.name, st.GetRole(), st.GetReason(),
				uint32(st.GetPair().GetTerm()), st.GetSite()))
		}
		lines = append(lines, fmt.Sprintf("%s: %v", s.name, w.siteOf(ctx, s)))
	}
	return strings.Join(lines, "\n")
}

// contents returns the digests of a node as text, or the error message.
func (w *world) contents(ctx context.Context, m *member) string {
	resp, err := pb.NewAdminServiceClient(w.conns[m.address]).GetQueueDigests(ctx, &pb.GetQueueDigestsRequest{})
	if err != nil {
		return err.Error()
	}
	return fmt.Sprint(resp.GetDigest(), resp.GetQueues())
}

// equal waits until the contents of all four nodes are equal.
func (w *world) equal(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, recoveryLimit)
	defer cancel()
	for {
		seen := map[string][]string{}
		for _, s := range w.sites {
			for _, m := range s.members {
				text := w.contents(ctx, m)
				seen[text] = append(seen[text], m.name)
			}
		}
		if len(seen) == 1 {
			return nil
		}
		if sleep(ctx, poll); ctx.Err() != nil {
			return fmt.Errorf("contents differ: %v\n%s", seen, w.describe())
		}
	}
}

// options returns the options of a client that reaches only the given address. If only is empty, the client reaches
// all nodes.
func (w *world) options(only string, more ...grpc.DialOption) client.Options {
	addresses := w.Addresses()
	if only != "" {
		addresses = []string{only}
	}
	return client.Options{
		Addresses: addresses,
		DialOptions: append(more, grpc.WithContextDialer(func(ctx context.Context, to string) (net.Conn, error) {
			if only != "" && to != only {
				return nil, &net.OpError{Op: "dial", Net: "tcp", Err: syscall.EHOSTUNREACH}
			}
			return w.Dial(ctx, to)
		})),
	}
}

var _ cluster.Target = (*world)(nil)

// NewClient implements cluster.Target.
func (w *world) NewClient(ctx context.Context, more ...grpc.DialOption) (*client.Client, error) {
	return client.OpenWith(ctx, w.options("", more...))
}

// NewClientOf implements cluster.Target.
func (w *world) NewClientOf(ctx context.Context, address string) (*client.Client, error) {
	return client.OpenWith(ctx, w.options(address))
}

// Addresses implements cluster.Target.
func (w *world) Addresses() []string {
	var all []string
	for _, s := range w.sites {
		for _, m := range s.members {
			all = append(all, m.address)
		}
	}
	return all
}

// ConnTo implements cluster.Target.
func (w *world) ConnTo(address string) *grpc.ClientConn { return w.conns[address] }

// WaitApplied implements cluster.Target.
func (w *world) WaitApplied(ctx context.Context) error {
	_, _, err := w.settled(ctx)
	return err
}

// Digests implements cluster.Target. It compares the sites, and returns the digests of the primary.
func (w *world) Digests(ctx context.Context) ([]historycheck.Digest, error) {
	if err := w.equal(ctx); err != nil {
		return nil, err
	}
	primary, _ := w.primary(ctx)
	if primary == nil {
		return nil, errors.New("no primary site")
	}
	for ; ctx.Err() == nil; sleep(ctx, poll) {
		var out []historycheck.Digest
		for _, m := range primary.members {
			d, err := pb.NewAdminServiceClient(w.conns[m.address]).GetDigest(ctx, &pb.GetDigestRequest{})
			if err != nil {
				return nil, fmt.Errorf("digest of %s: %w", m.name, err)
			}
			out = append(out, historycheck.Digest{
				Node: m.name, LSN: d.GetLsn(), Content: d.GetContent(), Messages: d.GetMessages(),
			})
		}
		if out[0].LSN == out[1].LSN {
			return out, nil
		}
	}
	return nil, fmt.Errorf("digests of %s: %w", primary.name, ctx.Err())
}
