// SPDX-License-Identifier: Apache-2.0

package client_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/client/admin"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

const (
	primary = pb.SiteRole_SITE_ROLE_PRIMARY
	replica = pb.SiteRole_SITE_ROLE_REPLICA
	stopped = pb.SiteRole_SITE_ROLE_STOPPED
)

// primary returns an error if the site of the node is not the primary. The caller holds mu.
func (n *fakeNode) primary() error {
	if n.site == nil || n.site.GetRole() == primary {
		return nil
	}
	return replicaError(n.site.GetRemoteAddresses()...)
}

// replicaError returns the error with which a replica responds.
func replicaError(primaryAddresses ...string) error {
	st, err := status.Convert(answer(codes.FailedPrecondition, "REPLICA", false)).WithDetails(
		&pb.NotActive{PrimaryAddresses: primaryAddresses})
	if err != nil {
		return err
	}
	return st.Err()
}

// members returns the nodes of the node's pair.
func (n *fakeNode) members() []*fakeNode {
	if n.pairID == "p" {
		return n.pair.nodes[:]
	}
	return n.pair.other
}

// newFakeSites returns a pair that is the primary site a. The nodes of its replica b are in other and have higher
// terms.
func newFakeSites(t *testing.T) *fakePair {
	p := newFakePair(t)
	var addrs []string
	for i := range 2 {
		n := &fakeNode{pair: p, pairID: "q", role: pb.Role_ROLE_STANDBY, term: 50}
		n.start(fmt.Sprintf("127.0.0.%d:7420", i+3))
		p.other, addrs = append(p.other, n), append(addrs, n.addr)
	}
	p.other[0].other, p.other[1].other = addrs[1], addrs[0]
	p.other[0].role = pb.Role_ROLE_ACTIVE
	p.setSites(primary, 1, replica, 1)
	return p
}

// setSites sets the roles and the epochs of the sites a and b.
func (p *fakePair) setSites(a pb.SiteRole, epochA uint64, b pb.SiteRole, epochB uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.setSitesLocked(a, epochA, b, epochB)
}

func (p *fakePair) setSitesLocked(a pb.SiteRole, epochA uint64, b pb.SiteRole, epochB uint64) {
	for _, n := range p.nodes {
		n.site = &pb.SiteInfo{Name: "a", Role: a, Lineage: "l", Epoch: epochA, RemoteAddresses: p.siteB()}
	}
	for _, n := range p.other {
		n.site = &pb.SiteInfo{Name: "b", Role: b, Lineage: "l", Epoch: epochB, RemoteAddresses: p.addrs}
	}
	p.announce()
}

func (p *fakePair) siteB() []string { return []string{p.other[0].addr, p.other[1].addr} }

func (p *fakePair) allAddrs() []string { return append(p.siteB(), p.addrs...) }

// During a switch, requests wait. The client finds the new primary within milliseconds, and producers and consumers
// continue there.
func TestSiteSwitch(t *testing.T) { synctest.Test(t, testSiteSwitch) }

func testSiteSwitch(t *testing.T) {
	p := newFakeSites(t)
	c := p.client(client.Options{Addresses: p.allAddrs()})
	r, err := c.Publish(soon(t), "q", message("a"))
	require.NoError(t, err)
	require.Equal(t, p.addrs[0], r.Address)
	co, err := c.Consume(soon(t), "q", client.ConsumerOptions{})
	require.NoError(t, err)
	d, err := co.Receive(soon(t))
	require.NoError(t, err)
	require.NoError(t, d.AckSync(soon(t)))

	// The primary commits a message and stops before it responds.
	p.mu.Lock()
	p.onPublish = func(*fakeNode, *pb.PublishRequest) bool {
		p.onPublish = nil
		for _, n := range p.nodes {
			n.site = &pb.SiteInfo{Name: "a", Role: stopped, Lineage: "l", Epoch: 1, RemoteAddresses: p.siteB()}
		}
		p.announce()
		return false
	}
	p.mu.Unlock()
	answer := startPublish(t, c, "b")
	synctest.Wait()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	_, err = c.WaitActive(ctx)
	require.ErrorIs(t, err, client.ErrUnavailable)

	began := time.Now()
	p.setSites(stopped, 1, primary, 2)
	r = answer()
	require.Less(t, time.Since(began), 20*time.Millisecond)
	require.Equal(t, p.other[0].addr, r.Address)
	require.True(t, r.Duplicate)
	p.setSites(replica, 2, primary, 2)
	r, err = c.Publish(soon(t), "q", message("c"))
	require.NoError(t, err)
	require.Equal(t, p.other[0].addr, r.Address)
	for _, body := range []string{"b", "c"} {
		d, err := co.Receive(soon(t))
		require.NoError(t, err)
		require.Equal(t, body, string(d.Body))
		require.NoError(t, d.AckSync(soon(t)))
	}
	a, err := c.WaitActive(soon(t))
	require.NoError(t, err)
	require.Equal(t, client.Active{Address: p.other[0].addr, Term: 50}, a)

	p.setSites(primary, 3, stopped, 2) // switch back
	r, err = c.Publish(soon(t), "q", message("d"))
	require.NoError(t, err)
	require.Equal(t, p.addrs[0], r.Address)
	require.Equal(t, []string{"a", "b", "c", "d"}, p.bodies("q"))
}

// Messages that are published during switches are stored once, in order.
func TestSiteSwitchesUnderLoad(t *testing.T) { synctest.Test(t, testSiteSwitchesUnderLoad) }

func testSiteSwitchesUnderLoad(t *testing.T) {
	p := newFakeSites(t)
	epoch, last := uint64(1), 0
	p.mu.Lock()
	p.onPublish = func(*fakeNode, *pb.PublishRequest) bool {
		if len(p.requests) < last+5 {
			return true
		}
		epoch, last = epoch+1, len(p.requests)
		roles := [2]pb.SiteRole{primary, replica}
		if epoch%2 == 0 {
			roles = [2]pb.SiteRole{replica, primary}
		}
		p.setSitesLocked(roles[0], epoch, roles[1], epoch)
		return false // the request is committed
	}
	p.mu.Unlock()
	c := p.client(client.Options{Addresses: p.allAddrs()})
	producer, err := c.NewProducer(soon(t), client.ProducerOptions{BatchMessages: 2})
	require.NoError(t, err)
	var want []string
	for i := range 200 {
		want = append(want, fmt.Sprint(i))
		producer.PublishAsync(soon(t), "q", message("%d", i))
	}
	require.NoError(t, producer.Flush(soon(t)))
	require.Equal(t, want, p.bodies("q"))
	p.mu.Lock()
	defer p.mu.Unlock()
	require.Greater(t, epoch, uint64(4))
}

// After a switch is rolled back, waiting requests continue on the old primary, in its old epoch.
func TestSiteSwitchRolledBack(t *testing.T) { synctest.Test(t, testSiteSwitchRolledBack) }

func testSiteSwitchRolledBack(t *testing.T) {
	p := newFakeSites(t)
	c := p.client(client.Options{Addresses: p.allAddrs()})
	_, err := c.Publish(soon(t), "q", message("a"))
	require.NoError(t, err)
	p.setSites(stopped, 1, replica, 1)
	answer := startPublish(t, c, "b")
	synctest.Wait()
	require.Equal(t, []string{"a"}, p.bodies("q"))
	p.setSites(primary, 1, replica, 1)
	require.Equal(t, p.addrs[0], answer().Address)
}

// A superseded primary is not used, although it responds and its term is higher.
func TestSupersededPrimary(t *testing.T) { synctest.Test(t, testSupersededPrimary) }

func testSupersededPrimary(t *testing.T) {
	p := newFakeSites(t)
	c := p.client(client.Options{Addresses: p.allAddrs()})
	_, err := c.Publish(soon(t), "q", message("a"))
	require.NoError(t, err)
	p.mu.Lock()
	p.nodes[0].term = 100
	p.mu.Unlock()
	p.setSites(primary, 1, primary, 2)
	synctest.Wait()
	r, err := c.Publish(soon(t), "q", message("b"))
	require.NoError(t, err)
	require.Equal(t, p.other[0].addr, r.Address)

	// The superseded primary is not used after the new one has failed either.
	for _, n := range p.other {
		n.server.Stop()
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	_, err = c.Publish(ctx, "q", message("c"))
	require.ErrorIs(t, err, client.ErrUnavailable)
	require.Equal(t, []string{"a", "b"}, p.bodies("q"))
}

// The refusal of a replica is retried, at the addresses that it contains.
func TestReplicaRefusal(t *testing.T) { synctest.Test(t, testReplicaRefusal) }

func testReplicaRefusal(t *testing.T) {
	p := newFakeSites(t)
	p.mu.Lock()
	for _, n := range p.nodes {
		n.site = nil // the refusal is the only information
	}
	refused := 0
	p.endStream = func(*pb.PublishStreamRequest) error {
		if refused++; refused == 1 {
			p.nodes[0].role = pb.Role_ROLE_STANDBY
			for _, n := range p.other {
				n.site = &pb.SiteInfo{Name: "b", Role: primary, Lineage: "l", Epoch: 2}
			}
			return replicaError(p.siteB()...)
		}
		return nil
	}
	p.mu.Unlock()
	c := p.client(client.Options{})
	r, err := c.Publish(soon(t), "q", message("a"))
	require.NoError(t, err)
	require.Equal(t, p.other[0].addr, r.Address)
	require.False(t, r.Duplicate)
	require.Equal(t, 2, refused)
}

// The client learns the addresses of the other site while the primary serves, and uses them after a promotion.
func TestLearnsOtherSite(t *testing.T) { synctest.Test(t, testLearnsOtherSite) }

func testLearnsOtherSite(t *testing.T) {
	p := newFakeSites(t)
	c := p.client(client.Options{})
	fixed := p.client(client.Options{FixedAddresses: true})
	for _, c := range []*client.Client{c, fixed} {
		_, err := c.Publish(soon(t), "q", message("a"))
		require.NoError(t, err)
	}
	synctest.Wait()
	require.Equal(t, append(p.addrs, p.siteB()...), admin.New(c).Addresses())
	require.Equal(t, p.addrs, admin.New(fixed).Addresses())
	for _, n := range p.nodes {
		n.server.Stop()
	}
	p.setSites(primary, 1, primary, 2)
	r, err := c.Publish(soon(t), "q", message("b"))
	require.NoError(t, err)
	require.Equal(t, p.other[0].addr, r.Address)
}

// The error of a client that finds only a replica contains the reason.
func TestOnlyReplicas(t *testing.T) { synctest.Test(t, testOnlyReplicas) }

func testOnlyReplicas(t *testing.T) {
	p := newFakeSites(t)
	for _, n := range p.nodes {
		n.server.Stop()
	}
	for _, role := range []pb.SiteRole{replica, stopped} {
		p.setSites(primary, 1, role, 1)
		c := p.client(client.Options{Addresses: p.siteB(), FailFast: true})
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		_, err := c.WaitActive(ctx)
		cancel()
		require.ErrorIs(t, err, client.ErrUnavailable)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		var e *client.Error
		require.ErrorAs(t, err, &e)
		require.Equal(t, "REPLICA", e.Reason)
		require.Equal(t, p.other[0].addr, e.Address)
		require.Contains(t, e.Message, p.addrs[0])
	}
}

// With AnySite, the client uses the pair in Addresses, even if it is a replica.
func TestAnySite(t *testing.T) { synctest.Test(t, testAnySite) }

func testAnySite(t *testing.T) {
	p := newFakeSites(t)
	c := p.client(client.Options{Addresses: p.siteB(), AnySite: true})
	a, err := c.WaitActive(soon(t))
	require.NoError(t, err)
	require.Equal(t, p.other[0].addr, a.Address)
	_, err = c.Begin().Publish("q", message("a")).Commit(soon(t))
	require.ErrorIs(t, err, client.ErrRefused)
	var e *client.Error
	require.ErrorAs(t, err, &e)
	require.Equal(t, "REPLICA", e.Reason)
	require.NotErrorIs(t, err, client.ErrOutcomeUnknown)

	// Nor does the replica serve streams.
	refused := map[string]error{}
	_, refused["publish"] = c.Publish(soon(t), "q", message("a"))
	producer, err := c.NewProducer(soon(t), client.ProducerOptions{})
	require.NoError(t, err)
	first, second := producer.PublishAsync(soon(t), "q", message("a")), producer.PublishAsync(soon(t), "q", message("b"))
	_, refused["first"] = first.Wait(soon(t))
	_, refused["second"] = second.Wait(soon(t))
	require.NoError(t, producer.Close())
	_, refused["consume"] = c.Consume(soon(t), "q", client.ConsumerOptions{})
	for _, err := range c.Browse(soon(t), "q", client.BrowseOptions{}) {
		refused["browse"] = err
	}
	for name, err := range refused {
		require.ErrorIs(t, err, client.ErrRefused, name)
		require.NotErrorIs(t, err, client.ErrOutcomeUnknown, name)
		require.ErrorAs(t, err, &e, name)
		require.Equal(t, "REPLICA", e.Reason, name)
	}

	// Neither a promotion of the other site nor the addresses of its nodes have an effect.
	p.setSites(primary, 3, primary, 2)
	synctest.Wait()
	a, err = c.WaitActive(soon(t))
	require.NoError(t, err)
	require.Equal(t, p.other[0].addr, a.Address)
	require.Equal(t, p.siteB(), admin.New(c).Addresses())

	// The client follows a failover within the pair.
	p.mu.Lock()
	p.other[1].role, p.other[1].term = pb.Role_ROLE_ACTIVE, 51
	p.announce()
	p.mu.Unlock()
	synctest.Wait()
	a, err = c.WaitActive(soon(t))
	require.NoError(t, err)
	require.Equal(t, client.Active{Address: p.other[1].addr, Term: 51}, a)
}
