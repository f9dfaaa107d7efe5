// SPDX-License-Identifier: Apache-2.0

package settings_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/server/node"
	"github.com/lockstep-mq/lockstep/test/simpair"
)

// A change of min-in-sync and of other settings changes nothing if the resulting settings are invalid.
func TestInvalidChange(t *testing.T) { simpair.Test(t, testInvalidChange) }

func testInvalidChange(t *testing.T, w *simpair.World) {
	c := w.PairConfig("a")
	n := w.Start(c, node.Options{})
	n.WaitFor(pb.Role_ROLE_ACTIVE_ALONE)
	change := func(set map[string]string) error {
		_, err := pb.NewMaintenanceServiceClient(n.Conn()).ChangeSettings(t.Context(), &pb.ChangeSettingsRequest{Set: set})
		return err
	}
	changed := func() (names []string) {
		r, err := pb.NewMaintenanceServiceClient(n.Conn()).ListSettings(t.Context(), &pb.ListSettingsRequest{})
		require.NoError(t, err)
		for _, s := range r.GetSettings() {
			if s.GetChanged() {
				names = append(names, s.GetName())
			}
		}
		return names
	}
	require.NoError(t, change(map[string]string{"limits.message-bytes": "2MiB"}))

	// The node restarts with a configuration in which that value is too large.
	require.NoError(t, n.Stop())
	c.Listen = n.Ready.Address
	c.Limits.MessageBytes, c.Limits.TransactionBytes = 1<<20, 2<<20
	n = w.Start(c, node.Options{})
	n.WaitFor(pb.Role_ROLE_ACTIVE_ALONE)
	both := map[string]string{"min-in-sync": "1", "log.level": "debug"}
	require.Equal(t, codes.InvalidArgument, status.Code(change(both)))
	require.Equal(t, []string{"limits.message-bytes"}, changed())

	both["limits.message-bytes"] = "1MiB"
	require.NoError(t, change(both))
	require.ElementsMatch(t, []string{"limits.message-bytes", "log.level", "min-in-sync"}, changed())
}

// A value that was set on both nodes can be reset on one of them. It remains set on the other node.
func TestUnsetOnOneNode(t *testing.T) { simpair.Test(t, testUnsetOnOneNode) }

func testUnsetOnOneNode(t *testing.T, w *simpair.World) {
	active, standby := w.StartPair()
	change := func(req *pb.ChangeSettingsRequest) {
		t.Helper()
		_, err := pb.NewMaintenanceServiceClient(active.Conn()).ChangeSettings(t.Context(), req)
		require.NoError(t, err)
	}
	level := func(n *simpair.Node) (value string, changed bool) {
		r, err := pb.NewMaintenanceServiceClient(n.Conn()).ListSettings(t.Context(), &pb.ListSettingsRequest{})
		require.NoError(t, err)
		i := slices.IndexFunc(r.GetSettings(), func(s *pb.RunningSetting) bool { return s.GetName() == "log.level" })
		return r.GetSettings()[i].GetValue(), r.GetSettings()[i].GetChanged()
	}
	wait := func(n *simpair.Node, want string, wantChanged bool) {
		t.Helper()
		w.Eventually(func() bool {
			value, changed := level(n)
			return value == want && changed == wantChanged
		}, "log.level is not %s", want)
	}
	configured, _ := level(active)
	for name, one := range map[string]*simpair.Node{"a": active, "b": standby} {
		other := active
		if one == active {
			other = standby
		}
		change(&pb.ChangeSettingsRequest{Set: map[string]string{"log.level": "warn"}})
		wait(one, "warn", true)
		wait(other, "warn", true)
		change(&pb.ChangeSettingsRequest{Unset: []string{"log.level"}, Node: name})
		wait(one, configured, false)
		wait(other, "warn", true)
	}
	change(&pb.ChangeSettingsRequest{Unset: []string{"log.level"}})
	wait(active, configured, false)
	wait(standby, configured, false)
}
