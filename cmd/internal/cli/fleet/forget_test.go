// SPDX-License-Identifier: Apache-2.0

package fleet_test

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// The command names the queues that are lost, requires a confirmation, and waits for moves from the pair.
func TestForgetPair(t *testing.T) {
	n := start(t, "a")
	n.fleet.Pairs = []*pb.FleetPair{{Name: "a"}, {Name: "b", Queues: 2}}
	n.pages = map[string]*pb.ListPlacementsResponse{"": {Placements: []*pb.Placement{
		{Queue: "b.1", Pair: "b", Epoch: 4}, {Queue: "b.2", Pair: "b", Epoch: 5},
	}}}
	n.forgets = []*pb.ForgetPairResponse{{Queues: 1, Moves: []uint64{7}, Waiting: []uint64{6}}, {Queues: 1}}
	n.moves = &pb.ListMovesResponse{Moves: []*pb.FleetMove{
		{Epoch: 7, From: "a", To: "b", Queues: []string{"a.1", "a.2"}},
		{Epoch: 6, From: "b", To: "a", Queues: []string{"b.1"}},
	}}
	_, _, code := n.cli(t).Run("", "fleet", "forget", "b")
	require.NotZero(t, code, "no confirmation")
	require.Len(t, n.forgets, 2)

	out := n.cli(t).OK("fleet", "forget", "b", "--yes", "--output", "json")
	var got struct {
		Done         bool     `json:"done"`
		Names        []string `json:"queue_names"`
		Removed      uint64   `json:"removed_queues"`
		RemovedMoves []uint64 `json:"removed_moves"`
		WaitingMoves []uint64 `json:"waiting_moves"`
		Returned     []struct {
			Epoch  uint64   `json:"epoch"`
			From   string   `json:"from"`
			Queues []string `json:"queues"`
		} `json:"returned_moves"`
	}
	require.NoError(t, json.Unmarshal([]byte(out), &got))
	require.True(t, got.Done)
	require.Equal(t, []string{"b.1", "b.2"}, got.Names)
	require.Equal(t, uint64(2), got.Removed)
	require.Equal(t, []uint64{7}, got.RemovedMoves)
	require.Empty(t, got.WaitingMoves)
	require.Len(t, got.Returned, 1)
	require.Equal(t, uint64(7), got.Returned[0].Epoch)
	require.Equal(t, "a", got.Returned[0].From)
	require.Equal(t, []string{"a.1", "a.2"}, got.Returned[0].Queues)
}
