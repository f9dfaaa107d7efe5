// SPDX-License-Identifier: Apache-2.0

package settings_test

import (
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
