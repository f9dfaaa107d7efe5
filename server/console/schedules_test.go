// SPDX-License-Identifier: Apache-2.0

package console_test

import (
	"net/http"
	"net/url"
	"testing"

	"github.com/stretchr/testify/require"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// The page shows, runs, pauses, resumes and deletes schedules. Messages that the queue discards are not reported as
// published.
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
	var last response
	do := func(action string) {
		t.Helper()
		last = b.post("/schedules/"+action+"?name=nightly", url.Values{"csrf": {b.csrf()}})
		require.Equal(t, http.StatusOK, last.code, last.body)
	}
	for _, action := range []string{"run", "pause", "delete"} {
		require.Contains(t, b.get("/schedules").body, `"/schedules/`+action)
	}
	do("run")
	require.Contains(t, last.body, "Published a")
	require.Equal(t, uint64(1), get().GetHistory()[0].GetSequence())
	do("pause")
	require.True(t, get().GetPaused())
	require.Contains(t, b.get("/schedules").body, `"/schedules/resume`)
	do("resume")
	require.False(t, get().GetPaused())
	queues := pb.NewQueueServiceClient(cc)
	_, err = queues.DeleteSubscription(t.Context(), &pb.DeleteSubscriptionRequest{Queue: "jobs", Name: "default"})
	require.NoError(t, err)
	do("run")
	require.Equal(t, uint64(2), get().GetHistory()[0].GetSequence())
	require.NotContains(t, last.body, "Published a")
	require.NotContains(t, b.post("/queue/publish?name=jobs", url.Values{"csrf": {b.csrf()}}).body, "Published as")
	do("delete")
	require.NotContains(t, b.get("/schedules").body, `"/schedules/run`)
}
