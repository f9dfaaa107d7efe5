// SPDX-License-Identifier: Apache-2.0

package client_test

import (
	"errors"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/lockstep-mq/lockstep/client"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// promote promotes site b in the given epoch without a planned switch. Of queue q, only the first keep messages
// remain; all other messages and all acknowledgements are lost.
func (p *fakePair) promote(epoch uint64, keep int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.promoteLocked(epoch, keep)
}

func (p *fakePair) promoteLocked(epoch uint64, keep int) {
	p.messages["q"] = p.messages["q"][:keep:keep]
	p.acked["q"], p.producers = nil, make(map[string]*fakeProducer)
	p.setSitesLocked(primary, 1, primary, epoch)
	for _, n := range p.other {
		n.site.LossyEpoch = epoch
	}
}

// hold publishes messages and receives each of them without answering.
func (p *fakePair) hold(t *testing.T, c *client.Client, co *client.Consumer, bodies ...string) []*client.Delivery {
	t.Helper()
	var ds []*client.Delivery
	for _, body := range bodies {
		_, err := c.Publish(soon(t), "q", message("%s", body))
		require.NoError(t, err)
		d, err := co.Receive(soon(t))
		require.NoError(t, err)
		require.Equal(t, body, string(d.Body))
		ds = append(ds, d)
	}
	return ds
}

func (p *fakePair) ackedSequences(queue string) []uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	var out []uint64
	for s := range uint64(len(p.messages[queue])) {
		if p.acked[queue][s+1] {
			out = append(out, s+1)
		}
	}
	return out
}

// The new primary has lost the second message, and assigns its sequence to another message. The consumer delivers
// that message, and answers to the lost message do not apply to the new one.
func TestLossyPromotion(t *testing.T) { synctest.Test(t, testLossyPromotion) }

func testLossyPromotion(t *testing.T) {
	p := newFakeSites(t)
	c := p.client(client.Options{Addresses: p.allAddrs()})
	co, err := c.Consume(soon(t), "q", client.ConsumerOptions{})
	require.NoError(t, err)
	old := p.hold(t, c, co, "a", "b")
	p.promote(2, 1)
	_, err = c.Publish(soon(t), "q", message("c"))
	require.NoError(t, err)

	again, err := co.Receive(soon(t))
	require.NoError(t, err)
	require.Equal(t, "a", string(again.Body))
	other, err := co.Receive(soon(t))
	require.NoError(t, err)
	require.Equal(t, "c", string(other.Body))
	require.Equal(t, old[1].Sequence, other.Sequence)
	require.Zero(t, p.lastQueueID(), "the queue may have another ID")

	for _, answer := range []func(*client.Delivery) error{
		(*client.Delivery).Ack, (*client.Delivery).Ack, (*client.Delivery).Nack, (*client.Delivery).Reject,
		func(d *client.Delivery) error { return d.AckSync(soon(t)) },
		func(d *client.Delivery) error { return d.Extend(soon(t)) },
		func(d *client.Delivery) error { _, err := c.Begin().Ack(d).Commit(soon(t)); return err },
		func(d *client.Delivery) error { _, err := c.Begin().Take(d).Commit(soon(t)); return err },
		func(d *client.Delivery) error { _, err := c.Begin().Release(other, d).Commit(soon(t)); return err },
		func(d *client.Delivery) error { return c.Begin().Take(d).Prepare(soon(t), "x") },
	} {
		for _, d := range old {
			err := answer(d)
			require.ErrorIs(t, err, client.ErrInvalid)
			require.NotErrorIs(t, err, client.ErrOutcomeUnknown)
		}
	}
	require.NoError(t, co.Flush(soon(t)))
	require.Empty(t, p.ackedSequences("q"))

	require.NoError(t, other.AckSync(soon(t)))
	require.Equal(t, []uint64{2}, p.ackedSequences("q"))
	_, err = c.Begin().Take(again).Commit(soon(t))
	require.NoError(t, err)
	require.Equal(t, []uint64{1, 2}, p.ackedSequences("q"))
}

func (p *fakePair) lastQueueID() uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.queueIDs[len(p.queueIDs)-1]
}

// Acks that were not confirmed before the promotion are not sent to the new primary. Their outcome is lost.
func TestLossyPromotionWithPendingAcks(t *testing.T) {
	synctest.Test(t, testLossyPromotionWithPendingAcks)
}

func testLossyPromotionWithPendingAcks(t *testing.T) {
	p := newFakeSites(t)
	c := p.client(client.Options{Addresses: p.allAddrs()})
	co, err := c.Consume(soon(t), "q", client.ConsumerOptions{})
	require.NoError(t, err)
	old := p.hold(t, c, co, "confirmed", "a", "b", "c")
	require.NoError(t, old[0].AckSync(soon(t)))
	p.mu.Lock()
	p.endConsume = func(r *pb.ConsumeRequest) error {
		if len(r.GetAck()) == 0 {
			return nil
		}
		p.endConsume = nil
		p.promoteLocked(2, 0)
		return replicaError()
	}
	err = errors.Join(old[1].Ack(), old[2].Ack()) // both are recorded before the node processes the first one
	p.mu.Unlock()
	require.NoError(t, err)
	err = old[2].AckSync(soon(t))
	require.ErrorIs(t, err, client.ErrOutcomeLost)
	require.ErrorIs(t, err, client.ErrOutcomeUnknown)
	require.ErrorIs(t, old[1].AckSync(soon(t)), client.ErrOutcomeLost)
	require.NoError(t, old[0].AckSync(soon(t)), "was confirmed")
	require.ErrorIs(t, old[3].Ack(), client.ErrInvalid)
	require.ErrorIs(t, co.Flush(soon(t)), client.ErrOutcomeLost)
	require.NoError(t, co.Flush(soon(t)), "reported once")

	for i, d := range p.hold(t, c, co, "d", "e", "f", "g") {
		require.Equal(t, old[i].Sequence, d.Sequence)
	}
	require.NoError(t, co.Flush(soon(t)))
	require.Empty(t, p.ackedSequences("q"))
}

// A transaction with an unknown outcome is not sent to the new primary.
func TestLossyPromotionDuringCommit(t *testing.T) { synctest.Test(t, testLossyPromotionDuringCommit) }

func testLossyPromotionDuringCommit(t *testing.T) {
	p := newFakeSites(t)
	c := p.client(client.Options{Addresses: p.allAddrs()})
	co, err := c.Consume(soon(t), "q", client.ConsumerOptions{})
	require.NoError(t, err)
	old := p.hold(t, c, co, "a")
	p.mu.Lock()
	p.onPublish = func(*fakeNode, *pb.PublishRequest) bool {
		p.onPublish = nil
		p.promoteLocked(2, 0)
		return false
	}
	p.mu.Unlock()
	txn := c.Begin().Take(old[0]).Publish("out", message("x"))
	for range 2 {
		_, err = txn.Commit(soon(t))
		require.ErrorIs(t, err, client.ErrOutcomeLost)
		require.ErrorIs(t, err, client.ErrOutcomeUnknown)
	}
	txn.Rollback()
	d := p.hold(t, c, co, "b")[0]
	require.Equal(t, old[0].Sequence, d.Sequence)
	require.Empty(t, p.ackedSequences("q"))
	p.mu.Lock()
	defer p.mu.Unlock()
	require.Equal(t, 1, p.commits)
}

// Deliveries remain valid after planned switches, even if an earlier promotion lost data.
func TestDeliveriesAfterSwitch(t *testing.T) { synctest.Test(t, testDeliveriesAfterSwitch) }

func testDeliveriesAfterSwitch(t *testing.T) {
	p := newFakeSites(t)
	c := p.client(client.Options{Addresses: p.allAddrs()})
	co, err := c.Consume(soon(t), "q", client.ConsumerOptions{})
	require.NoError(t, err)
	first := p.hold(t, c, co, "a")
	p.setSites(replica, 2, primary, 2)
	require.NoError(t, first[0].AckSync(soon(t)))
	require.EqualValues(t, 7, p.lastQueueID())
	p.promote(3, 0)
	synctest.Wait()
	second := p.hold(t, c, co, "b")
	p.setLossy(4, 3)
	require.NoError(t, second[0].AckSync(soon(t)))
	_, err = c.Begin().Release(second[0]).Commit(soon(t))
	require.NoError(t, err)
}

// setLossy makes site a the primary after a planned switch. lossy is the epoch of the last loss.
func (p *fakePair) setLossy(epoch, lossy uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.setSitesLocked(primary, epoch, replica, epoch)
	for _, n := range p.nodes {
		n.site.LossyEpoch = lossy
	}
}

// A node was demoted and promoted with a loss, and the client has not received its new status. The node refuses answers
// to earlier deliveries, and the consumer discards these deliveries.
func TestOutdatedSiteEpoch(t *testing.T) { synctest.Test(t, testOutdatedSiteEpoch) }

func testOutdatedSiteEpoch(t *testing.T) {
	p := newFakeSites(t)
	c := p.client(client.Options{Addresses: p.allAddrs()})
	co, err := c.Consume(soon(t), "q", client.ConsumerOptions{})
	require.NoError(t, err)
	old := p.hold(t, c, co, "a", "b")
	outdated := answer(codes.FailedPrecondition, "SITE_EPOCH", false)
	refused := 0
	p.mu.Lock()
	p.refuseCommit = func(r *pb.CommitRequest) error {
		require.EqualValues(t, 1, r.GetOperations()[0].GetAck().GetSiteEpoch())
		return outdated
	}
	p.endConsume = func(r *pb.ConsumeRequest) error {
		switch {
		case len(r.GetAck()) > 0 && r.GetAttach() == nil:
			return status.Error(codes.Unavailable, "gone")
		case r.GetAttach() != nil && r.GetAttach().GetSiteEpoch() < 3:
			refused++
			return outdated
		}
		return nil
	}
	p.mu.Unlock()
	_, err = c.Begin().Ack(old[1]).Commit(soon(t))
	require.ErrorIs(t, err, client.ErrInvalid)
	require.NotErrorIs(t, err, client.ErrOutcomeUnknown)
	require.ErrorIs(t, old[0].AckSync(soon(t)), client.ErrOutcomeLost)
	p.mu.Lock()
	require.NotZero(t, refused)
	p.messages["q"] = p.messages["q"][:1:1] // "b" is lost
	p.mu.Unlock()
	p.setLossy(3, 3)
	_, err = c.Publish(soon(t), "q", message("c"))
	require.NoError(t, err)

	for i, want := range []string{"a", "c"} {
		d, err := co.Receive(soon(t))
		require.NoError(t, err)
		require.Equal(t, want, string(d.Body))
		require.Equal(t, old[i].Sequence, d.Sequence)
	}
	require.ErrorIs(t, old[1].Ack(), client.ErrInvalid)
	require.ErrorIs(t, co.Flush(soon(t)), client.ErrOutcomeLost)
	require.NoError(t, co.Flush(soon(t)), "reported once")
	require.Empty(t, p.ackedSequences("q"))
	require.Zero(t, p.lastQueueID())
}

// The outcome of a transaction is lost if the first attempt has no response and the node refuses the second because of
// the epoch.
func TestOutdatedSiteEpochAfterUnknownOutcome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newFakeSites(t)
		c := p.client(client.Options{Addresses: p.allAddrs()})
		co, err := c.Consume(soon(t), "q", client.ConsumerOptions{})
		require.NoError(t, err)
		old := p.hold(t, c, co, "a")
		p.mu.Lock()
		p.refuseCommit = func(*pb.CommitRequest) error {
			p.refuseCommit = func(*pb.CommitRequest) error { return answer(codes.FailedPrecondition, "SITE_EPOCH", false) }
			return status.Error(codes.Unavailable, "gone")
		}
		p.mu.Unlock()
		_, err = c.Begin().Take(old[0]).Commit(soon(t))
		require.ErrorIs(t, err, client.ErrOutcomeLost)
		require.ErrorIs(t, err, client.ErrOutcomeUnknown)
	})
}
