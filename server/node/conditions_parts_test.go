// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/lockstep-mq/lockstep/failover"
	"github.com/lockstep-mq/lockstep/failover/coordinator/raft"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/replication"
	"github.com/lockstep-mq/lockstep/server/config"
	"github.com/lockstep-mq/lockstep/server/observe/conditions"
	"github.com/lockstep-mq/lockstep/server/observe/metrics"
	"github.com/lockstep-mq/lockstep/server/ops/maintenance"
	"github.com/lockstep-mq/lockstep/server/ops/settings"
	"github.com/lockstep-mq/lockstep/store/checkpoint"
	"github.com/lockstep-mq/lockstep/store/vfs"
	"github.com/lockstep-mq/lockstep/store/vfs/memfs"
)

func kinds(f *findings) []conditions.Kind {
	out := make([]conditions.Kind, 0, len(f.all))
	for _, r := range f.all {
		out = append(out, r.Kind)
	}
	return out
}

// Failed and stalled jobs and old backups are reported. Successful and paused jobs are not.
func TestJobConditions(t *testing.T) {
	now := time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)
	ran := func(hoursAgo int, outcome string) maintenance.Run {
		return maintenance.Run{StartedAt: now.Add(-time.Duration(hoursAgo) * time.Hour), Outcome: outcome}
	}
	for name, tt := range map[string]struct {
		kind   string
		paused bool
		put    int // hours ago
		runs   []maintenance.Run
		want   []conditions.Kind
	}{
		"fine": {
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
			want: []conditions.Kind{conditions.JobFailed},
		},
		"two missed": {
			kind: maintenance.JobBackup, put: 100,
			runs: []maintenance.Run{ran(1, maintenance.RunFailed), ran(13, maintenance.RunOK)},
			want: []conditions.Kind{conditions.JobFailed, conditions.BackupOld},
		},
		"never": {
			kind: maintenance.JobBackup, put: 100,
			want: []conditions.Kind{conditions.BackupMissing},
		},
		"put a moment ago": {kind: maintenance.JobBackup, put: 1},
		"paused": {
			kind: maintenance.JobBackup, put: 100, paused: true,
			runs: []maintenance.Run{ran(50, maintenance.RunFailed)},
		},
		"no backup": {kind: maintenance.JobScan, put: 100},
		"runs": {
			kind: maintenance.JobScan, put: 100,
			runs: []maintenance.Run{ran(1, maintenance.RunRunning)},
		},
		"runs past the next one": {
			kind: maintenance.JobScan, put: 100,
			runs: []maintenance.Run{ran(7, maintenance.RunRunning)}, want: []conditions.Kind{conditions.JobStuck},
		},
	} {
		t.Run(name, func(t *testing.T) {
			var f findings
			job(&f, &maintenance.JobInfo{
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

// A plan without progress is reported after a while. A plan with progress is not.
func TestPlanConditions(t *testing.T) {
	l := &conditionMonitor{}
	now := time.Unix(1_700_000_000, 0)
	look := func(after time.Duration, p maintenance.Plan) []conditions.Kind {
		now = now.Add(after)
		var f findings
		l.plan(&f, &p, now)
		return kinds(&f)
	}
	p := maintenance.Plan{ID: "1", State: "scanning", Progress: &checkpoint.Progress{Bytes: 1}}
	require.Empty(t, look(0, p))
	require.Empty(t, look(planStuckAfter, p))
	require.Equal(t, []conditions.Kind{conditions.PlanStuck}, look(time.Second, p))
	p.Progress.Bytes++
	require.Empty(t, look(time.Second, p))
	p.Retries = planRetries
	require.Equal(t, []conditions.Kind{conditions.PlanStuck}, look(time.Second, p))
	p.State = maintenance.PlanFailed
	require.Equal(t, []conditions.Kind{conditions.PlanFailed}, look(time.Second, p))
	p.State = maintenance.PlanDone
	require.Empty(t, look(time.Hour, p))
}

// The expiry of a certificate is reported two weeks in advance, and when it has expired.
func TestCertificateConditions(t *testing.T) {
	now := time.Now()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	write := func(ends time.Time) string {
		template := &x509.Certificate{
			SerialNumber: big.NewInt(1), NotBefore: now.Add(-1000 * time.Hour),
			NotAfter: ends,
		}
		der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
		require.NoError(t, err)
		file := filepath.Join(t.TempDir(), "cert.pem")
		require.NoError(t, os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600))
		return file
	}
	for left, want := range map[time.Duration][]conditions.Kind{
		-time.Hour:          {conditions.CertificateExpired},
		time.Hour:           {conditions.CertificateExpires},
		13 * 24 * time.Hour: {conditions.CertificateExpires},
		15 * 24 * time.Hour: {},
	} {
		c := config.Default()
		c.Coordinator.Etcd.TLS.CA = write(now.Add(left))
		kept, err := openSecrets(&c, zap.NewNop())
		require.NoError(t, err)
		l := &conditionMonitor{n: &node{cfg: c, secrets: kept}}
		var f findings
		l.secrets(&f, now)
		require.Equal(t, want, kinds(&f), "%v", left)
	}
}

// A process that uses more than memory.budget and the process overhead is reported.
func TestMemoryCondition(t *testing.T) {
	c := config.Default()
	l := &conditionMonitor{n: &node{cfg: c}}
	var before findings
	l.machine(&before)
	require.NotContains(t, kinds(&before), conditions.MemoryOverBudget)
	l.n.cfg.Memory.Budget = 16 << 20
	held := bytes.Repeat([]byte("x"), 256<<20)
	var f findings
	l.machine(&f)
	require.Contains(t, kinds(&f), conditions.MemoryOverBudget)
	runtime.KeepAlive(held)
}

// A transaction that has been prepared for long is reported by name.
func TestPreparedCondition(t *testing.T) {
	now := time.Now()
	var f findings
	prepared(&f, "order/1", now.Add(-59*time.Minute).UnixMilli(), now)
	require.Empty(t, f.all)
	prepared(&f, "order/1", now.Add(-61*time.Minute).UnixMilli(), now)
	require.Equal(t, []conditions.Kind{conditions.PreparedOld}, kinds(&f))
	require.Contains(t, f.all[0].Details, `"order/1"`)
}

// Clock differences are reported, except for the part that the network delay of the response may explain.
func TestClockConditions(t *testing.T) {
	now := time.Now()
	for name, tt := range map[string]struct {
		offset, unsure time.Duration
		want           bool
	}{
		"the same":     {0, 0, false},
		"ahead":        {3 * time.Second, 0, true},
		"behind":       {-3 * time.Second, 0, true},
		"a slow way":   {3 * time.Second, 2 * time.Second, false},
		"almost right": {-time.Second, 0, false},
	} {
		l := &conditionMonitor{}
		l.other.answer = &pb.GetStatusResponse{Node: &pb.NodeStatus{NodeId: "2"}, Now: timestamppb.New(now)}
		l.other.at, l.other.offset, l.other.unsure = now, tt.offset, tt.unsure
		var f findings
		l.fromOther(&f, &failover.Status{}, now)
		require.Equal(t, tt.want, len(f.all) == 1 && f.all[0].Kind == conditions.ClockSkew, name)
		var late findings
		l.fromOther(&late, &failover.Status{}, now.Add(answerAge+time.Second))
		require.Empty(t, late.all, "an answer of long ago says nothing")
	}
}

// The status of an older release without conditions is converted to conditions.
func TestConditionsOfAnOlderRelease(t *testing.T) {
	now := time.Now()
	l := &conditionMonitor{n: &node{cfg: config.Default()}}
	l.n.settings = settings.New(settings.Options{Config: l.n.cfg})
	l.other.answer = &pb.GetStatusResponse{
		Node: &pb.NodeStatus{NodeId: "2", Name: "b"}, Store: &pb.StoreStatus{DiskFree: 1 << 20},
		Alarms: []*pb.Alarm{{Kind: "corrupt-page-file", Message: "index"}, {Kind: "of-the-future"}},
	}
	l.other.at = now
	var f findings
	l.fromOther(&f, &failover.Status{}, now)
	require.Equal(t, []conditions.Kind{conditions.DiskLow, conditions.CorruptPageFile}, kinds(&f))
	require.Equal(t, conditions.Node{ID: "2", Name: "b"}, f.all[0].Node)
}

// A refused node outside the pair is reported for a while.
func TestForeignNodes(t *testing.T) {
	l := &conditionMonitor{}
	look := func(err error, ago time.Duration) []conditions.Kind {
		var f findings
		l.foreignNode(&f, &replication.ForeignNode{At: time.Now().Add(-ago), Err: err})
		return kinds(&f)
	}
	same := fmt.Errorf("%w: %w", replication.ErrProtocol, replication.ErrSameNode)
	require.Equal(t, []conditions.Kind{conditions.DuplicateProcess}, look(same, 0))
	require.Equal(t, []conditions.Kind{conditions.ForeignNode}, look(replication.ErrOtherPair, 0))
	require.Empty(t, look(replication.ErrOtherPair, time.Minute))
}

// A voter is up if it responds with the expected identity and participates. Lag is reported only for those.
func TestJudgeVoters(t *testing.T) {
	m := func(id string) raft.Member {
		return raft.Member{ID: id, Address: id + ":1", Kind: raft.KindNode}
	}
	got := judgeVoters([]voterAnswer{
		{member: m("a"), status: raft.Status{ID: "a", Member: true, LastIndex: 10}},
		{member: m("b"), status: raft.Status{ID: "b", Member: true, LastIndex: 7}},
		{member: m("c"), err: errors.New("does not answer")},
		{member: m("d"), status: raft.Status{ID: "another", Member: true, LastIndex: 9}},
		{member: m("e"), status: raft.Status{
			ID: "e", Member: true, LastIndex: 9,
			Fenced: raft.FencedRolledBack,
		}},
	})
	up := func(id string, up bool, behind uint64) metrics.Voter {
		return metrics.Voter{Address: id + ":1", Kind: "node", Up: up, Behind: behind}
	}
	require.Equal(t, []metrics.Voter{
		up("a", true, 0), up("b", true, 3), up("c", false, 0), up("d", false, 0),
		up("e", false, 0),
	}, got)
}

// noDirect is a disk without support for O_DIRECT.
type noDirect struct{ vfs.FS }

func (noDirect) TakesDirect(string) bool { return false }

// A filesystem that cannot bypass the page cache is reported, if the settings request that.
func TestPageCacheConditions(t *testing.T) {
	for use, want := range map[string]bool{"auto": true, "drop": true, "keep": false} {
		c := config.Default()
		c.Memory.PageCache = use
		require.Equal(t, want, fallsBack(noDirect{vfs.OS()}, &c), use)
		require.False(t, fallsBack(memfs.New(), &c), "%s: it is not known", use)
	}
}
