// SPDX-License-Identifier: Apache-2.0

package metrics_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/failover"
	"github.com/lockstep-mq/lockstep/server/observe/conditions"
	"github.com/lockstep-mq/lockstep/server/observe/metrics"
	"github.com/lockstep-mq/lockstep/server/observe/nodestatus"
	"github.com/lockstep-mq/lockstep/server/ops/maintenance"
	"github.com/lockstep-mq/lockstep/store"
	"github.com/lockstep-mq/lockstep/store/checkpoint"
	"github.com/lockstep-mq/lockstep/store/queue"
	"github.com/lockstep-mq/lockstep/store/vfs"
)

func serve(t *testing.T, st *nodestatus.Node) func(path string) (int, string) {
	address := listen(t, st, metrics.NewLatencies())
	return func(path string) (int, string) {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+address+path, nil)
		require.NoError(t, err)
		resp, err := http.DefaultClient.Do(req)
		require.NoError(t, err)
		defer func() { _ = resp.Body.Close() }()
		body, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		return resp.StatusCode, string(body)
	}
}

// listen serves the metrics of a node with status st, and returns the address of the port.
func listen(t *testing.T, st *nodestatus.Node, l *metrics.Latencies) string {
	s, err := store.Open(store.Options{FS: vfs.OS(), Dir: t.TempDir()})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	m, err := metrics.Listen(ctx, metrics.Options{
		State: func() nodestatus.Node { return *st }, Extra: func() metrics.Extra { return metrics.Extra{DiskLow: true} },
		Store: s, Address: "127.0.0.1:0", Queues: 5, Latencies: l,
	})
	require.NoError(t, err)
	ended := make(chan error, 1)
	go func() { ended <- m.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-ended)
		require.NoError(t, s.Close())
	})
	return m.Address()
}

// The metrics contain the role of the node, its store, and the progress of maintenance.
func TestMetrics(t *testing.T) {
	src := &nodestatus.Node{
		Pair: failover.Status{Role: failover.RoleStandby, Reason: "follows a"}, StartedAt: time.Now(),
		Maintenance: &maintenance.Activity{Operation: "rewrite", Progress: checkpoint.Progress{Bytes: 1, TotalBytes: 4}},
	}
	get := serve(t, src)
	code, body := get("/metrics")
	require.Equal(t, http.StatusOK, code)
	for _, line := range []string{
		`lockstep_role{role="STANDBY"} 1`, `lockstep_role{role="ACTIVE"} 0`, "lockstep_page_size_bytes 2048",
		"lockstep_disk_low 1",
		`lockstep_maintenance_progress_ratio{operation="rewrite"} 0.25`, "lockstep_store_usable 1", "go_goroutines",
	} {
		require.Contains(t, body, line)
	}
}

// siteSamples returns the values of the exported site metrics, by series.
func siteSamples(body string) map[string]string {
	out := make(map[string]string)
	for _, m := range regexp.MustCompile(`(?m)^lockstep_site_(\S+) (\S+)$`).FindAllStringSubmatch(body, -1) {
		out[m[1]] = m[2]
	}
	return out
}

// A replica exports its role and its lag. While it is not connected, the lag grows. A pair without sites exports
// no site metrics.
func TestSiteMetrics(t *testing.T) {
	src := &nodestatus.Node{}
	get := serve(t, src)
	samples := func() map[string]string {
		_, body := get("/metrics")
		return siteSamples(body)
	}
	require.Empty(t, samples())

	src.Site = &conditions.Site{Active: true, Role: queue.SiteReplica, Epoch: 4}
	require.Equal(t, map[string]string{
		`role{role="none"}`: "0", `role{role="primary"}`: "0", `role{role="replica"}`: "1", `role{role="stopped"}`: "0",
		"epoch": "4", "connected": "0", "received_bytes_total": "0", "connections_total": "0",
	}, samples(), "the lag is unknown")
	src.Site.Replication = conditions.SiteReplication{
		Connected: true, HeardAt: time.Now().Add(-time.Hour), Lag: 5 * time.Second, LagRecords: 6, LagBytes: 7,
		ReceivedBytes: 8, Connections: 9,
	}
	got := samples()
	for series, want := range map[string]string{
		"connected": "1", "lag_seconds": "5", "lag_records": "6", "lag_bytes": "7", "received_bytes_total": "8",
		"connections_total": "9",
	} {
		require.Equal(t, want, got[series], series)
	}
	src.Site.Replication.Connected = false
	lag, err := strconv.ParseFloat(samples()["lag_seconds"], 64)
	require.NoError(t, err)
	require.GreaterOrEqual(t, lag, time.Hour.Seconds())

	src.Site.Role = queue.SitePrimary
	require.Len(t, samples(), 5, "a primary exports role and epoch, without progress")
}

// A node with fleet.pair exports the state of its copy of the directory. Other nodes export no metrics of a fleet, even
// if their pair is a member.
func TestFleetMetrics(t *testing.T) {
	src := &nodestatus.Node{}
	get := serve(t, src)
	_, body := get("/metrics")
	require.NotContains(t, body, "lockstep_fleet_")
	src.Fleet = &conditions.Fleet{Pair: "a", ID: "f", Mismatch: "fleet.pair is not set"}
	_, body = get("/metrics")
	require.NotContains(t, body, "lockstep_fleet_")
	src.Fleet = &conditions.Fleet{
		Pair: "a", Current: true, Pairs: 2, Queues: 7,
		Moves: &conditions.FleetMoves{Done: 3, Canceled: 1, CopiedBytes: 4096},
	}
	_, body = get("/metrics")
	ended := []string{
		"pairs 2", "queues 7", "directory_current 1",
		`moves_ended_total{outcome="done"} 3`, `moves_ended_total{outcome="canceled"} 1`, "copied_bytes_total 4096",
	}
	for _, line := range ended {
		require.Contains(t, body, "lockstep_fleet_"+line+"\n")
	}
	require.NotContains(t, body, "lockstep_fleet_moves{", "only the active node exports the moves in progress")
	src.Fleet.Moves.Phases, src.Fleet.Moves.FencedQueues = map[string]int{"copying": 2, "taken": 0}, 5
	_, body = get("/metrics")
	for _, line := range append(ended, `moves{phase="copying"} 2`, `moves{phase="taken"} 0`, "fenced_queues 5") {
		require.Contains(t, body, "lockstep_fleet_"+line+"\n")
	}
}

// A certificate file that is used for several purposes is exported once for each set of labels.
func TestSharedCertificateFile(t *testing.T) {
	ca := conditions.Certificate{Use: "node", File: "/ca.pem", CA: true, Ends: time.Unix(2_000_000_000, 0)}
	own, etcd := ca, ca
	own.CA, etcd.Use = false, "etcd"
	get := serve(t, &nodestatus.Node{Certificates: []conditions.Certificate{ca, own, etcd}})
	code, body := get("/metrics")
	require.Equal(t, http.StatusOK, code, body)
	for _, sample := range []string{
		`lockstep_certificate_expiry_timestamp_seconds{file="/ca.pem"} 2e+09`,
		`lockstep_certificate_expires_in_seconds{file="/ca.pem",of="node"}`,
		`lockstep_certificate_expires_in_seconds{file="/ca.pem",of="etcd"}`,
	} {
		require.Contains(t, body, sample)
	}
}

// docs/reference/metrics.md contains the table of all metrics.
func TestTable(t *testing.T) {
	var b strings.Builder
	b.WriteString("| Metric | Type | Labels | Exported | Meaning |\n|---|---|---|---|---|\n")
	for _, m := range metrics.All() {
		labels := make([]string, 0, len(m.Labels))
		for _, l := range m.Labels {
			labels = append(labels, "`"+l+"`")
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s | %s |\n", m.Name, m.Type, strings.Join(labels, ", "), m.When, m.Help)
	}
	const file, begin, end = "../../../docs/reference/metrics.md", "<!-- table -->\n", "<!-- end of table -->\n"
	raw, err := os.ReadFile(file)
	require.NoError(t, err)
	head, rest, ok := strings.Cut(string(raw), begin)
	require.True(t, ok, "%s has no %q", file, begin)
	table, tail, ok := strings.Cut(rest, end)
	require.True(t, ok, "%s has no %q", file, end)
	if os.Getenv("LOCKSTEP_UPDATE") != "" {
		require.NoError(t, os.WriteFile(file, []byte(head+begin+b.String()+end+tail), 0o600))
		return
	}
	require.Equal(t, b.String(), table, "docs/reference/metrics.md differs from the metrics of a node: "+
		"LOCKSTEP_UPDATE=1 go test "+
		"./server/observe/metrics -run TestTable")
}

// An observation does not allocate memory, because it is made for each batch on the commit path.
func TestLatenciesAllocateNothing(t *testing.T) {
	l := metrics.NewLatencies()
	took := time.Microsecond
	observe := func() {
		took = took*5/4 + 1
		if took > time.Second {
			took = time.Microsecond
		}
		l.Committed(took)
		l.Acknowledged(took)
		l.Written(took)
		l.Coordinated(metrics.LoadRecord, took, false)
	}
	for range 1000 { // native buckets are allocated on first use
		observe()
	}
	require.Zero(t, testing.AllocsPerRun(1000, observe))
}

// A Prometheus server that supports native histograms requests protobuf. It receives native histograms in
// addition to the classic buckets.
func TestNativeHistograms(t *testing.T) {
	l := metrics.NewLatencies()
	l.Committed(3 * time.Millisecond)
	l.Acknowledged(time.Millisecond)
	l.Written(2 * time.Millisecond)
	l.Coordinated(metrics.SwapRecord, 5*time.Millisecond, true)
	l.Paused(30 * time.Millisecond)
	address := listen(t, &nodestatus.Node{}, l)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+address+"/metrics", nil)
	require.NoError(t, err)
	req.Header.Set("Accept", "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited")
	resp, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	defer func() { _ = resp.Body.Close() }()
	require.Contains(t, resp.Header.Get("Content-Type"), "application/vnd.google.protobuf")
	decoder := expfmt.NewDecoder(resp.Body, expfmt.ResponseFormat(resp.Header))
	var native []string
	for {
		var family dto.MetricFamily
		err := decoder.Decode(&family)
		if errors.Is(err, io.EOF) {
			break
		}
		require.NoError(t, err)
		if family.GetType() != dto.MetricType_HISTOGRAM || !strings.HasPrefix(family.GetName(), "lockstep_") {
			continue
		}
		native = append(native, family.GetName())
		for _, m := range family.GetMetric() {
			h := m.GetHistogram()
			require.NotNil(t, h.Schema, "%s is not native", family.GetName())
			require.Equal(t, int32(3), h.GetSchema(), "a factor of at most 1.1")
			require.Len(t, h.GetBucket(), 19, "the classic buckets of %s", family.GetName())
			if h.GetSampleCount() > 0 {
				require.NotEmpty(t, h.GetPositiveSpan(), "%s has no native buckets", family.GetName())
			}
		}
	}
	var want []string
	for _, m := range metrics.All() {
		if m.Type == metrics.Histogram {
			want = append(want, m.Name)
		}
	}
	require.ElementsMatch(t, want, native)
}

// The names of metrics conform to the conventions of Prometheus.
func TestNamesPassLint(t *testing.T) {
	get := serve(t, &nodestatus.Node{})
	_, body := get("/metrics")
	problems, err := promlint.New(strings.NewReader(body)).Lint()
	require.NoError(t, err)
	require.Empty(t, problems)
}

// /healthz returns 200 while the node runs. /readyz returns 200 only if the role is ready. Otherwise the response
// contains the reason. All profiles except the command line are available.
func TestProbes(t *testing.T) {
	src := &nodestatus.Node{}
	src.Pair.Role, src.Pair.Reason = failover.RoleCatchingUp, "was disconnected"
	get := serve(t, src)
	code, _ := get("/healthz")
	require.Equal(t, http.StatusOK, code)
	code, body := get("/readyz")
	require.Equal(t, http.StatusServiceUnavailable, code)
	require.Equal(t, "CATCHING_UP: was disconnected\n", body)
	code, body = get("/debug/pprof/goroutine?debug=1")
	require.Equal(t, http.StatusOK, code)
	require.NotEmpty(t, body)
	code, _ = get("/debug/pprof/cmdline")
	require.Equal(t, http.StatusNotFound, code, "a flag may contain a password")

	ready := &nodestatus.Node{}
	ready.Pair.Role = failover.RoleActive
	code, body = serve(t, ready)("/readyz")
	require.Equal(t, http.StatusOK, code)
	require.Equal(t, "ACTIVE\n", body, "no reason")
}

// /activez returns 200 only on the active, and only while it serves clients. A standby is ready but not active.
func TestActiveProbe(t *testing.T) {
	for name, tt := range map[string]struct {
		pair          failover.Status
		ready, active int
		site          *conditions.Site
	}{
		"active": {
			failover.Status{Role: failover.RoleActive, Serve: true, Deliver: true},
			http.StatusOK,
			http.StatusOK,
			nil,
		},
		"active alone": {
			failover.Status{Role: failover.RoleActiveAlone, Serve: true, Deliver: true},
			http.StatusOK,
			http.StatusOK,
			nil,
		},
		"standby": {failover.Status{Role: failover.RoleStandby}, http.StatusOK, http.StatusServiceUnavailable, nil},
		"blocked": {
			failover.Status{Role: failover.RoleBlocked, Deliver: true},
			http.StatusServiceUnavailable,
			http.StatusServiceUnavailable,
			nil,
		},
		"catching up": {
			failover.Status{Role: failover.RoleCatchingUp},
			http.StatusServiceUnavailable,
			http.StatusServiceUnavailable,
			nil,
		},
		"not delivering": {
			failover.Status{Role: failover.RoleActive, Serve: true},
			http.StatusOK,
			http.StatusServiceUnavailable,
			nil,
		},
		"primary site": {
			failover.Status{Role: failover.RoleActive, Serve: true, Deliver: true},
			http.StatusOK,
			http.StatusOK,
			&conditions.Site{Active: true, Role: queue.SitePrimary},
		},
		"replica site": {
			failover.Status{Role: failover.RoleActive, Serve: true, Deliver: true},
			http.StatusOK,
			http.StatusServiceUnavailable,
			&conditions.Site{Active: true, Role: queue.SiteReplica},
		},
		"stopped site": {
			failover.Status{Role: failover.RoleActive, Serve: true, Deliver: true},
			http.StatusOK,
			http.StatusServiceUnavailable,
			&conditions.Site{Active: true, Role: queue.SiteStopped},
		},
	} {
		t.Run(name, func(t *testing.T) {
			src := &nodestatus.Node{Site: tt.site}
			src.Pair = tt.pair
			get := serve(t, src)
			code, _ := get("/readyz")
			require.Equal(t, tt.ready, code)
			code, body := get("/activez")
			require.Equal(t, tt.active, code)
			require.Contains(t, body, tt.pair.Role.String())
		})
	}
}
