// SPDX-License-Identifier: Apache-2.0

package site

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/replication"
	"github.com/lockstep-mq/lockstep/store"
	"github.com/lockstep-mq/lockstep/store/queue"
)

const (
	// maxHeld limits the time during which a replica applies no records of the primary.
	maxHeld = time.Second
	// verifyWait limits the time that a replica waits for the record of the primary at which the sites are compared.
	verifyWait = 10 * time.Second
	// verifyAttempts is the maximum number of attempts to compare the sites.
	verifyAttempts = 3
	// maxDigestBytes is the maximum size of a response with the digests or the differences of all queues.
	maxDigestBytes = 64 << 20
)

// errPassed is returned if the digests of the replica and of the primary belong to different transactions.
var errPassed = errors.New("replica is at another transaction than the primary")

// Verify compares the rolling digests of both sites at the same transaction. A primary forwards the call to its
// replica. If local is set, the call is not forwarded: this site must be the replica. Its errors include ErrRole,
// ErrUnreachable, ErrDiverged, ErrNotCompared and, on a node that is not active, the error of Options.NotActive.
func (m *Manager) Verify(ctx context.Context, local bool) (*pb.VerifySitesResponse, error) {
	if _, err := m.active(); err != nil {
		return nil, err
	}
	role := m.o.Store.Site().Role
	if role == queue.SiteReplica {
		return m.verifyReplica(ctx)
	}
	if local || role == queue.SiteNone {
		return nil, fmt.Errorf("%w: site %q is not a replica, and has none", ErrRole, m.o.Name)
	}
	address, remote, err := m.ask(ctx)
	switch {
	case err != nil:
		return nil, err
	case remote.GetRole() != pb.SiteRole_SITE_ROLE_REPLICA:
		return nil, fmt.Errorf("%w: site %s is not a replica", ErrRole, remote.GetName())
	}
	c, err := m.remote.client(address)
	if err != nil {
		return nil, err
	}
	resp, err := c.VerifySites(ctx, &pb.VerifySitesRequest{Local: true}, grpc.MaxCallRecvMsgSize(maxDigestBytes))
	if err = fromStatus(err); errors.Is(err, replication.ErrNotActive) {
		err = fmt.Errorf("%w: %s", ErrNotCompared, err.Error()) // hide the redirect to the replica from the client
	}
	return resp, err
}

// verifyReplica compares this replica with its primary.
func (m *Manager) verifyReplica(ctx context.Context) (*pb.VerifySitesResponse, error) {
	select {
	case m.verify <- struct{}{}:
	case <-ctx.Done():
		return nil, fmt.Errorf("%w: another comparison is in progress: %w", ErrNotCompared, ctx.Err())
	}
	defer func() { <-m.verify }()
	var err error
	for range verifyAttempts {
		var resp *pb.VerifySitesResponse
		if resp, err = m.compareOnce(ctx); err == nil {
			m.compared(resp)
			return resp, nil
		}
		if !errors.Is(err, errPassed) {
			break
		}
	}
	if errors.Is(err, ErrRole) || errors.Is(err, ErrUnreachable) || errors.Is(err, ErrDiverged) {
		return nil, err
	}
	return nil, fmt.Errorf("%w: %s", ErrNotCompared, err.Error()) // it may be ErrNotActive of the primary
}

// compareOnce pauses this replica while it requests the digests of the primary, which are from the same or a later
// record. The replica then continues up to that record, and the digests are compared.
func (m *Manager) compareOnce(ctx context.Context) (*pb.VerifySitesResponse, error) {
	address, _, err := m.ask(ctx)
	if err != nil {
		return nil, err
	}
	c, err := m.remote.client(address)
	if err != nil {
		return nil, err
	}
	m.mu.Lock()
	p := m.puller
	m.mu.Unlock()
	if p == nil {
		return nil, errors.New("the replica does not receive the log of the primary")
	}
	p.hold()
	defer p.setLimit(noLimit)
	began := time.Now()
	request, cancel := context.WithTimeout(ctx, maxHeld)
	defer cancel()
	theirs, err := c.GetSiteDigests(request, &pb.GetSiteDigestsRequest{}, grpc.MaxCallRecvMsgSize(maxDigestBytes))
	held := time.Since(began)
	if err != nil {
		return nil, fmt.Errorf("digests of the primary: %w", fromStatus(err))
	}
	mine, err := m.digestsAt(ctx, p, theirs)
	if err != nil {
		return nil, err
	}
	return m.comparison(theirs, &mine, held), nil
}

// digestsAt returns the digests of this replica at the transaction to which theirs, the digests of the primary,
// belong.
func (m *Manager) digestsAt(
	ctx context.Context, p *puller, theirs *pb.GetSiteDigestsResponse,
) (store.QueueDigests, error) {
	st := m.o.Store.Site()
	by := theirs.GetSite()
	if st.Role != queue.SiteReplica || st.Lineage.String() != by.GetLineage() || st.Epoch != by.GetEpoch() {
		return store.QueueDigests{}, fmt.Errorf("%w: the primary has epoch %d, this site is a %s in epoch %d", errPassed,
			by.GetEpoch(), st.Role, st.Epoch)
	}
	at := positionFromProto(theirs.GetAt())
	p.setLimit(at.LSN)
	ctx, cancel := context.WithTimeout(ctx, verifyWait)
	defer cancel()
	seen, err := p.await(ctx, at.LSN)
	if errors.Is(err, errEnded) {
		err = fmt.Errorf("%w: %w", errPassed, err)
	}
	if err == nil {
		err = sameRecord(at, seen)
	}
	if err != nil {
		return store.QueueDigests{}, err
	}
	mine, err := m.o.Store.QueueDigestsAt(ctx, 0, 0)
	if err != nil {
		return mine, fmt.Errorf("digests of the replica: %w", err)
	}
	if mine.Logical != theirs.GetLogical() {
		return mine, fmt.Errorf("%w: %d, not %d", errPassed, mine.Logical, theirs.GetLogical())
	}
	return mine, nil
}

// comparison returns the result of the comparison of theirs, the digests of the primary, with mine, the digests of
// this replica.
func (m *Manager) comparison(
	theirs *pb.GetSiteDigestsResponse, mine *store.QueueDigests, held time.Duration,
) *pb.VerifySitesResponse {
	out := &pb.VerifySitesResponse{
		Primary: theirs.GetSite().GetName(), Replica: m.o.Name, Epoch: theirs.GetSite().GetEpoch(),
		Logical: mine.Logical, PrimaryLsn: theirs.GetAt().GetLsn(), ReplicaLsn: mine.LSN,
		Queues: uint64(len(theirs.GetQueues())), Held: durationpb.New(held),
	}
	there := digestsFromProto(theirs)
	for i := range there.Queues {
		out.Messages += there.Queues[i].Messages
	}
	for _, d := range there.Differences(mine) {
		out.Differences = append(out.Differences, &pb.SiteDifference{
			Queue: d.Name(), Primary: digestToProto(d.Here), Replica: digestToProto(d.There),
		})
	}
	if len(out.GetDifferences()) == 0 && there.Digest != mine.Digest {
		out.Differences = append(out.Differences, &pb.SiteDifference{
			Primary: &pb.SiteQueueDigest{Digest: there.Digest}, Replica: &pb.SiteQueueDigest{Digest: mine.Digest},
		})
	}
	return out
}

// compared records the result of a comparison for Difference.
func (m *Manager) compared(r *pb.VerifySitesResponse) {
	text := ""
	if found := r.GetDifferences(); len(found) > 0 {
		name := "state outside of queues"
		if q := found[0].GetQueue(); q != "" {
			name = "queue " + q
		}
		text = fmt.Sprintf("sites %s and %s differ at transaction %d: %s", r.GetPrimary(), r.GetReplica(), r.GetLogical(),
			name)
		if len(found) > 1 {
			text += fmt.Sprintf(", and %d more", len(found)-1)
		}
		m.log.Error("the two sites differ", zap.String("differences", text))
	}
	m.mu.Lock()
	m.differ = text
	m.mu.Unlock()
	m.o.Changed()
}

// Difference returns the difference that the last comparison of this replica with its primary found. It returns ""
// if the sites were equal or were not compared.
func (m *Manager) Difference() string {
	if m.o.Store.Site().Role != queue.SiteReplica {
		return ""
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.primary == nil {
		return ""
	}
	return m.differ
}

// digests returns the current digests of this primary.
func (m *Manager) digests(ctx context.Context) (*pb.GetSiteDigestsResponse, error) {
	if _, err := m.active(); err != nil {
		return nil, err
	}
	d, err := m.o.Store.QueueDigestsAt(ctx, 0, 0)
	if err != nil {
		return nil, fmt.Errorf("digests of the primary: %w", err)
	}
	site := m.state() // after the digests, so that the epoch of the site is not lower than that of the digests
	if site.GetRole() != pb.SiteRole_SITE_ROLE_PRIMARY && site.GetRole() != pb.SiteRole_SITE_ROLE_STOPPED {
		return nil, fmt.Errorf("%w: site %q is not a primary", ErrRole, m.o.Name)
	}
	at, ok := m.o.Store.PositionOf(d.LSN)
	if !ok {
		at = m.o.Store.LogStart() // the log is empty
	}
	out := &pb.GetSiteDigestsResponse{
		Site: site, At: positionToProto(at), Logical: d.Logical, Digest: d.Digest,
		Queues: make([]*pb.SiteQueueDigest, len(d.Queues)),
	}
	for i := range d.Queues {
		out.Queues[i] = digestToProto(&d.Queues[i])
	}
	return out, nil
}

// digestToProto returns nil for nil.
func digestToProto(d *store.QueueDigest) *pb.SiteQueueDigest {
	if d == nil {
		return nil
	}
	return &pb.SiteQueueDigest{
		Id: d.ID, Name: d.Name, Digest: d.Digest, NextSequence: d.NextSequence, Messages: d.Messages,
	}
}

func digestsFromProto(p *pb.GetSiteDigestsResponse) *store.QueueDigests {
	out := &store.QueueDigests{
		LSN: p.GetAt().GetLsn(), Logical: p.GetLogical(), Digest: p.GetDigest(),
		Queues: make([]store.QueueDigest, len(p.GetQueues())),
	}
	for i, q := range p.GetQueues() {
		out.Queues[i] = store.QueueDigest{
			ID: q.GetId(), Name: q.GetName(), Digest: q.GetDigest(), NextSequence: q.GetNextSequence(),
			Messages: q.GetMessages(),
		}
	}
	return out
}
