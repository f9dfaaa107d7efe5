// SPDX-License-Identifier: Apache-2.0

package conditions

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/failover"
	"github.com/lockstep-mq/lockstep/replication"
	"github.com/lockstep-mq/lockstep/server/config"
	"github.com/lockstep-mq/lockstep/server/delivery/dispatch"
	"github.com/lockstep-mq/lockstep/server/ops/maintenance"
	"github.com/lockstep-mq/lockstep/store/checkpoint"
)

func kinds(f *findings) []Kind {
	out := make([]Kind, 0, len(f.all))
	for _, r := range f.all {
		out = append(out, r.Kind)
	}
	return out
}

// Failed jobs, stalled jobs and old backups are reported. Successful jobs and paused jobs are not.
func TestJobConditions(t *testing.T) {
	now := time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)
	ran := func(hoursAgo int, outcome string) maintenance.Run {
		return maintenance.Run{StartedAt: now.Add(-time.Duration(hoursAgo) * time.Hour), Outcome: outcome}
	}
	for name, tt := range map[string]struct {
		kind   string
		paused bool
		put    int // hours since the last change of the job
		runs   []maintenance.Run
		want   []Kind
	}{
		"successful": {
			kind: maintenance.JobBackup, put: 100,
			runs: []maintenance.Run{ran(1, maintenance.RunOK)},
		},
		"one missed": {
			kind: maintenance.JobBackup, put: 100,
			runs: []maintenance.Run{ran(9, maintenance.RunOK)},
		},
		"failed once": {
			kind: maintenance.JobBackup, put: 100,
			runs: []maintenance.Run{ran(1, maintenance.RunFailed), ran(7, maintenance.RunOK)},
			want: []Kind{JobFailed},
		},
		"two missed": {
			kind: maintenance.JobBackup, put: 100,
			runs: []maintenance.Run{ran(1, maintenance.RunFailed), ran(13, maintenance.RunOK)},
			want: []Kind{JobFailed, BackupOld},
		},
		"no run": {
			kind: maintenance.JobBackup, put: 100,
			want: []Kind{BackupMissing},
		},
		"recently created": {kind: maintenance.JobBackup, put: 1},
		"paused": {
			kind: maintenance.JobBackup, put: 100, paused: true,
			runs: []maintenance.Run{ran(50, maintenance.RunFailed)},
		},
		"not a backup": {kind: maintenance.JobScan, put: 100},
		"running": {
			kind: maintenance.JobScan, put: 100,
			runs: []maintenance.Run{ran(1, maintenance.RunRunning)},
		},
		"running at the next start": {
			kind: maintenance.JobScan, put: 100,
			runs: []maintenance.Run{ran(7, maintenance.RunRunning)}, want: []Kind{JobStuck},
		},
	} {
		t.Run(name, func(t *testing.T) {
			var f findings
			f.job(&maintenance.JobInfo{
				Job: maintenance.Job{
					Name: "j", Kind: tt.kind, Schedule: "@every 6h", Paused: tt.paused,
					UpdatedAt: now.Add(-time.Duration(tt.put) * time.Hour),
				},
				History: tt.runs,
			}, now)
			require.ElementsMatch(t, tt.want, kinds(&f))
		})
	}
}

// A plan is reported if it makes no progress for planStuckAfter or fails repeatedly. A plan that makes progress
// is not reported.
func TestPlanConditions(t *testing.T) {
	var r Rules
	now := time.Unix(1_700_000_000, 0)
	report := func(after time.Duration, p maintenance.Plan) []Kind {
		now = now.Add(after)
		var f findings
		r.plan(&f, &p, now)
		return kinds(&f)
	}
	p := maintenance.Plan{ID: "1", State: "scanning", Progress: &checkpoint.Progress{Bytes: 1}}
	require.Empty(t, report(0, p))
	require.Empty(t, report(planStuckAfter, p))
	require.Equal(t, []Kind{PlanStuck}, report(time.Second, p))
	p.Progress.Bytes++
	require.Empty(t, report(time.Second, p))
	p.Retries = planRetries
	require.Equal(t, []Kind{PlanStuck}, report(time.Second, p))
	p.State = maintenance.PlanFailed
	require.Equal(t, []Kind{PlanFailed}, report(time.Second, p))
	p.State = maintenance.PlanDone
	require.Empty(t, report(time.Hour, p))
}

// A certificate is reported from two weeks before its expiry, and after its expiry.
func TestCertificateConditions(t *testing.T) {
	now := time.Now()
	c := config.Default()
	for left, want := range map[time.Duration][]Kind{
		-time.Hour:          {CertificateExpired},
		time.Hour:           {CertificateExpires},
		13 * 24 * time.Hour: {CertificateExpires},
		15 * 24 * time.Hour: {},
	} {
		var f findings
		f.secrets(&Input{Now: now, Config: &c, Certificates: []Certificate{{Ends: now.Add(left)}}})
		require.Equal(t, want, kinds(&f), "%v", left)
	}
}

// Each state of the process and its resources that requires attention becomes a condition.
func TestMachineConditions(t *testing.T) {
	c := config.Default()
	for want, in := range map[Kind]Input{
		MemoryOverBudget: {MemoryUsed: 2, MemoryAllowed: 1},
		PageCacheOnly:    {CacheOnly: true},
		AuditErrors:      {AuditError: "why"},
		AuthFailures:     {AuthError: "why"},
		JWKSUnavailable:  {KeysError: "why"},
	} {
		in.Config = &c
		var f findings
		f.machine(&in)
		require.Equal(t, []Kind{want}, kinds(&f))
	}
	var f findings
	f.machine(&Input{Config: &c, MemoryUsed: 1, MemoryAllowed: 1})
	require.Empty(t, f.all)
}

// A node without access rules is reported if other machines can reach any listener for clients.
func TestAccessCondition(t *testing.T) {
	for name, tt := range map[string]struct {
		listen, amqp, console string
		rules                 bool
		details               string
	}{
		"local":   {listen: "127.0.0.1:7420", amqp: "127.0.0.1:5672", console: "localhost:9422"},
		"off":     {listen: "127.0.0.1:7420"},
		"listen":  {listen: "0.0.0.0:7420", details: "listen 0.0.0.0:7420"},
		"amqp":    {listen: "127.0.0.1:7420", amqp: ":5672", details: "amqp.listen :5672"},
		"console": {listen: "127.0.0.1:7420", console: ":9422", details: "console.listen :9422"},
		"two":     {listen: ":7420", amqp: ":5672", details: "listen :7420, amqp.listen :5672"},
		"rules":   {listen: ":7420", amqp: ":5672", rules: true},
	} {
		t.Run(name, func(t *testing.T) {
			c := config.Default()
			c.Listen, c.AMQP.Listen, c.Console.Listen = tt.listen, tt.amqp, tt.console
			var f findings
			f.access(&Input{Config: &c, Unrestricted: !tt.rules})
			if tt.details == "" {
				require.Empty(t, f.all)
				return
			}
			require.Equal(t, []Kind{AccessUnrestricted}, kinds(&f))
			require.Equal(t, tt.details, f.all[0].Details)
		})
	}
}

// A transaction that was prepared more than an hour ago is reported with its XID.
func TestPreparedCondition(t *testing.T) {
	now := time.Now()
	var f findings
	f.work(&Input{Now: now, OldestPrepared: &Prepared{XID: "order/1", At: now.Add(-59 * time.Minute)}})
	require.Empty(t, f.all)
	f.work(&Input{Now: now, OldestPrepared: &Prepared{XID: "order/1", At: now.Add(-61 * time.Minute)}})
	require.Equal(t, []Kind{PreparedOld}, kinds(&f))
	require.Contains(t, f.all[0].Details, `"order/1"`)
}

// The details of the conditions for full dead-letter queues and stuck consumers contain the names of the queues.
func TestQueueConditions(t *testing.T) {
	var f findings
	f.work(&Input{})
	require.Empty(t, f.all)
	f.work(&Input{Full: []dispatch.FullError{{Queue: "orders", DeadLetter: "orders.dead"}}})
	require.Equal(t, []Kind{DeadLetterQueueFull}, kinds(&f))
	require.Contains(t, f.all[0].Details, `"orders"`)
	require.Contains(t, f.all[0].Details, `"orders.dead"`)
	f.all = nil
	f.work(&Input{Stuck: []StuckConsumer{{
		Queue: "orders", Subscription: "default", Address: "10.0.0.1:5000", InFlight: 3, For: 11*time.Minute + time.Second,
	}}})
	require.Equal(t, []Kind{ConsumerStuck}, kinds(&f))
	for _, part := range []string{"orders", "default", "10.0.0.1:5000", "3 messages", "11m0s"} {
		require.Contains(t, f.all[0].Details, part)
	}
	f.all = nil
	f.work(&Input{Full: make([]dispatch.FullError, 2*maxNamed)})
	require.Len(t, f.all, 1)
}

func TestQueuesPausedCondition(t *testing.T) {
	var f findings
	f.work(&Input{PausedQueues: []string{"orders", "payments"}})
	require.Equal(t, []Kind{QueuesPaused}, kinds(&f))
	require.Equal(t, `"orders"; "payments"`, f.all[0].Details)
}

// A clock difference is reported if it exceeds the limit plus the part that network latency may have caused.
func TestClockConditions(t *testing.T) {
	now := time.Now()
	for name, tt := range map[string]struct {
		offset, unsure time.Duration
		want           bool
	}{
		"equal":                  {0, 0, false},
		"ahead":                  {3 * time.Second, 0, true},
		"behind":                 {-3 * time.Second, 0, true},
		"latency may explain it": {3 * time.Second, 2 * time.Second, false},
		"below the limit":        {-time.Second, 0, false},
	} {
		o := &Other{Node: Node{ID: "2"}, At: now, Offset: tt.offset, Unsure: tt.unsure}
		var f findings
		f.other(&Input{Now: now}, o)
		require.Equal(t, tt.want, len(f.all) == 1 && f.all[0].Kind == ClockSkew, name)
		var late findings
		late.other(&Input{Now: now.Add(answerAge + time.Second)}, o)
		require.Empty(t, late.all, "an old response is ignored")
	}
}

// The alarms of an older release without conditions are converted to conditions.
func TestConditionsOfAnOlderRelease(t *testing.T) {
	c := config.Default()
	node := Node{ID: "2", Name: "b"}
	var f findings
	f.other(&Input{Config: &c}, &Other{
		Node: node, Older: true, DiskFree: 1 << 20,
		Reports: []Report{{Kind: CorruptPageFile, Node: node}, {Kind: "of-the-future"}},
	})
	require.Equal(t, []Kind{DiskLow, CorruptPageFile}, kinds(&f))
	require.Equal(t, node, f.all[0].Node)
}

// While this node can read the cluster record, the record takes precedence over an earlier response of the
// active.
func TestRecordTakesPrecedence(t *testing.T) {
	a, b := uuid.New(), uuid.New()
	o := &Other{Node: Node{ID: a.String(), Name: "a"}, Reports: []Report{
		{Kind: OneCopyOnly, By: a.String()}, {Kind: PlanStuck, By: a.String()},
	}}
	in := Input{Pair: failover.Status{
		CoordinatorReachable: true, Self: failover.NodeInfo{ID: b, Name: "b"},
		Record: &failover.Record{Active: a, InSync: []failover.Member{{Node: a}, {Node: b}}},
	}}
	report := func() []Kind {
		f := findings{self: Node{ID: b.String(), Name: "b"}}
		f.other(&in, o)
		return kinds(&f)
	}
	require.Equal(t, []Kind{PlanStuck}, report())
	in.Pair.CoordinatorReachable = false
	require.Equal(t, []Kind{OneCopyOnly, PlanStuck}, report(), "the record of this node may be outdated")
}

// A foreign node is reported for some time after its last rejected attempt.
func TestForeignNodes(t *testing.T) {
	now := time.Now()
	report := func(err error, ago time.Duration) []Kind {
		var f findings
		f.foreignNode(now, &replication.ForeignNode{At: now.Add(-ago), Err: err})
		return kinds(&f)
	}
	same := fmt.Errorf("%w: %w", replication.ErrProtocol, replication.ErrSameNode)
	require.Equal(t, []Kind{DuplicateProcess}, report(same, 0))
	require.Equal(t, []Kind{ForeignNode}, report(replication.ErrOtherPair, 0))
	require.Empty(t, report(replication.ErrOtherPair, time.Minute))
}
