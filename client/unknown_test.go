// SPDX-License-Identifier: Apache-2.0

package client_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/client/admin"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

func (n *fakeNode) change() error {
	n.pair.mu.Lock()
	defer n.pair.mu.Unlock()
	return n.pair.refuseChange
}

func (n *fakeNode) SwitchSite(context.Context, *pb.SwitchSiteRequest) (*pb.SwitchSiteResponse, error) {
	return nil, n.change()
}

func (n *fakeNode) PromoteSite(context.Context, *pb.PromoteSiteRequest) (*pb.PromoteSiteResponse, error) {
	return nil, n.change()
}

func (n *fakeNode) DemoteSite(context.Context, *pb.DemoteSiteRequest) (*pb.DemoteSiteResponse, error) {
	return nil, n.change()
}

func (n *fakeNode) Switchover(context.Context, *pb.SwitchoverRequest) (*pb.SwitchoverResponse, error) {
	return nil, n.change()
}

func (n *fakeNode) SetPaused(context.Context, *pb.SetPausedRequest) (*pb.SetPausedResponse, error) {
	return nil, n.change()
}

func (n *fakeNode) ForceFailover(context.Context, *pb.ForceFailoverRequest) (*pb.ForceFailoverResponse, error) {
	return nil, n.change()
}

func (n *fakeNode) AdoptRecord(context.Context, *pb.AdoptRecordRequest) (*pb.AdoptRecordResponse, error) {
	return nil, n.change()
}

func (n *fakeNode) DropDamaged(context.Context, *pb.DropDamagedRequest) (*pb.DropDamagedResponse, error) {
	return nil, n.change()
}

func (n *fakeNode) ChangeSettings(context.Context, *pb.ChangeSettingsRequest) (*pb.ChangeSettingsResponse, error) {
	return nil, n.change()
}

func (n *fakeNode) LeaveFleet(context.Context, *pb.LeaveFleetRequest) (*pb.LeaveFleetResponse, error) {
	return nil, n.change()
}

func (n *fakeNode) MoveQueues(context.Context, *pb.MoveQueuesRequest) (*pb.MoveQueuesResponse, error) {
	return nil, n.change()
}

func (n *fakeNode) ForgetPair(context.Context, *pb.ForgetPairRequest) (*pb.ForgetPairResponse, error) {
	return nil, n.change()
}

// A change by one node has an unknown outcome unless the node has refused it. A dry run changes nothing.
func TestOutcomeOfNodeChange(t *testing.T) { synctest.Test(t, testOutcomeOfNodeChange) }

func testOutcomeOfNodeChange(t *testing.T) {
	p := newFakePair(t)
	adm := admin.New(p.client(client.Options{}))
	n, err := adm.Node(p.addrs[0])
	require.NoError(t, err)
	ctx := t.Context()
	forced := func(confirm bool) error {
		_, err := n.ForceFailover(ctx, &pb.ForceFailoverRequest{Confirm: confirm})
		return err
	}
	adopted := func(confirm bool) error {
		_, err := n.AdoptRecord(ctx, &pb.AdoptRecordRequest{Confirm: confirm})
		return err
	}
	dropped := func(dry bool) error {
		_, err := n.DropDamaged(ctx, &pb.DropDamagedRequest{DryRun: dry})
		return err
	}
	changes := map[string]func() error{
		"switch site":  func() error { _, err := n.SwitchSite(ctx, &pb.SwitchSiteRequest{}); return err },
		"promote site": func() error { _, err := n.PromoteSite(ctx, &pb.PromoteSiteRequest{}); return err },
		"demote site":  func() error { _, err := n.DemoteSite(ctx, &pb.DemoteSiteRequest{}); return err },
		"switchover":   func() error { _, err := n.Switchover(ctx, 0); return err },
		"pause":        func() error { _, err := n.SetPaused(ctx, true, ""); return err },
		"force":        func() error { return forced(true) },
		"adopt":        func() error { return adopted(true) },
		"drop":         func() error { return dropped(false) },
		"settings":     func() error { _, err := n.ChangeRunningSettings(ctx, nil); return err },
		"run job":      func() error { _, err := adm.RunJob(ctx, "nightly"); return err },
		"leave fleet":  func() error { return n.LeaveFleet(ctx) },
		"move queues":  func() error { _, err := n.MoveQueues(ctx, []string{"q"}, ""); return err },
		"forget pair":  func() error { _, err := n.ForgetPair(ctx, "x"); return err },
	}
	dryRuns := map[string]func() error{
		"force": func() error { return forced(false) },
		"adopt": func() error { return adopted(false) },
		"drop":  func() error { return dropped(true) },
	}
	set := func(err error) {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.refuseChange = err
	}
	for _, reason := range []string{"", "OUTCOME_UNKNOWN"} {
		set(refusal(t, codes.Unavailable, reason))
		for name, call := range changes {
			err := call()
			require.ErrorIs(t, err, client.ErrOutcomeUnknown, name)
			require.ErrorIs(t, err, client.ErrUnavailable, name)
		}
		for name, call := range dryRuns {
			require.NotErrorIs(t, call(), client.ErrOutcomeUnknown, name)
		}
	}
	set(refusal(t, codes.Unavailable, "SITE_UNREACHABLE"))
	for name, call := range changes {
		err := call()
		require.ErrorIs(t, err, client.ErrRefused, name)
		require.NotErrorIs(t, err, client.ErrOutcomeUnknown, name)
	}
}

// The call that removes the caller's rights ends the status stream before its response arrives. Its outcome is known.
func TestRightsLostDuringCall(t *testing.T) { synctest.Test(t, testRightsLostDuringCall) }

func testRightsLostDuringCall(t *testing.T) {
	p := newFakePair(t)
	p.auth.accept("lsk_good")
	p.replay = func(*pb.ReplayDeadLettersRequest) (*pb.ReplayDeadLettersResponse, error) {
		p.auth.accept()
		p.mu.Unlock()                 // other calls must not wait for it: a locked mutex stops the simulated time
		pause(500 * time.Millisecond) // the stream ends
		p.mu.Lock()
		return &pb.ReplayDeadLettersResponse{Moved: 1}, nil
	}
	c := p.client(client.Options{Token: "lsk_good"})
	result, err := admin.New(c).ReplayDeadLetters(soon(t), "dead", admin.ReplayOptions{})
	require.NoError(t, err)
	require.Equal(t, admin.ReplayResult{Moved: 1}, result)
	_, err = admin.New(c).ReplayDeadLetters(soon(t), "dead", admin.ReplayOptions{})
	require.ErrorIs(t, err, client.ErrUnauthenticated)
	require.NotErrorIs(t, err, client.ErrOutcomeUnknown)
}
