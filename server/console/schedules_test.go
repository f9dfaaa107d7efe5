// SPDX-License-Identifier: Apache-2.0

package console_test

import (
	"net/http"
	"net/url"
	"testing"

	"github.com/stretchr/testify/require"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// The page shows, runs, pauses, resumes and deletes schedules.
func TestSchedulesPage(t *testing.T) { simulated(t, testSchedulesPage) }

func testSchedulesPage(t *testing.T) {
	ready := startNode(t, nil)
	b := newBrowser(t, ready.Console)
	b.waitActive()
	cc := connect(t, ready.Address)
	t.Cleanup(func() { require.NoError(t, cc.Close()) })
	schedules := pb.NewScheduleServiceClient(cc)
	_, err := schedules.PutSchedule(t.Context(), &pb.PutScheduleRequest{Schedule: &pb.Schedule{
		Name: "nightly", Queue: "jobs", Cron: "0 2 * * *", TimeZone: "Europe/Berlin",
	}})
	require.NoError(t, err)
	_, err = pb.NewQueueServiceClient(cc).CreateQueue(t.Context(), &pb.CreateQueueRequest{Name: "jobs"})
	require.NoError(t, err)
	get := func() *pb.Schedule {
		resp, err := schedules.GetSchedule(t.Context(), &pb.GetScheduleRequest{Name: "nightly"})
		require.NoError(t, err)
		return resp.GetSchedule()
	}
	do := func(action string) {
		t.Helper()
		a := b.post("/schedules/"+action+"?name=nightly", url.Values{"csrf": {b.csrf()}})
		require.Equal(t, http.StatusOK, a.code, a.body)
	}
	for _, action := range []string{"run", "pause", "delete"} {
		require.Contains(t, b.get("/schedules").body, `"/schedules/`+action)
	}
	do("run")
	require.Equal(t, uint64(1), get().GetHistory()[0].GetSequence())
	do("pause")
	require.True(t, get().GetPaused())
	require.Contains(t, b.get("/schedules").body, `"/schedules/resume`)
	do("resume")
	require.False(t, get().GetPaused())
	do("delete")
	require.NotContains(t, b.get("/schedules").body, `"/schedules/run`)
}
