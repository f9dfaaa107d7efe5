// SPDX-License-Identifier: Apache-2.0

package node_test

import (
	"context"
	"crypto/tls"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/server/observe/metrics"
)

// httpClient returns a client for the HTTP ports.
func httpClient(t *testing.T, secure *tls.Config) *http.Client {
	t.Helper()
	transport := &http.Transport{DialContext: dialer(t), TLSClientConfig: secure}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

// scrape reads the metrics of a node. It returns the value of each series and the type of each metric.
func scrape(t *testing.T, address string) (values map[string]float64, types map[string]string) {
	t.Helper()
	req, err := http.NewRequestWithContext(context.Background(), http.MethodGet, "http://"+address+"/metrics", nil)
	require.NoError(t, err)
	resp, err := httpClient(t, nil).Do(req)
	require.NoError(t, err)
	defer func() { _ = resp.Body.Close() }()
	raw, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	values, types = make(map[string]float64), make(map[string]string)
	for line := range strings.Lines(string(raw)) {
		fields := strings.Fields(line)
		if strings.HasPrefix(line, "# TYPE ") {
			types[fields[2]] = fields[3]
		}
		if strings.HasPrefix(line, "#") || len(fields) == 0 {
			continue
		}
		at := strings.LastIndex(line, " ")
		v, err := strconv.ParseFloat(strings.TrimSpace(line[at:]), 64)
		require.NoError(t, err, line)
		values[line[:at]] = v
	}
	return values, types
}

// A pair exports exactly the metrics in docs/reference/metrics.md. Their values match its traffic.
func TestMetricsOfAPair(t *testing.T) { simulated(t, testMetricsOfAPair) }

func testMetricsOfAPair(t *testing.T) {
	etcd := startEtcd(t)
	addresses := make([]string, 2)
	nodes := make([]*testNode, 2)
	for i, name := range []string{"a", "b"} {
		c := settingsOfPair(t, name, etcd)
		l := freePort(t)
		addresses[i] = l.Addr().String()
		require.NoError(t, l.Close())
		c.Metrics.Listen, c.Metrics.Queues = addresses[i], 2
		c.WAL.Archive, c.Backup.Path = t.TempDir(), t.TempDir()
		nodes[i] = start(t, c)
		nodes[i].waitFor([]pb.Role{pb.Role_ROLE_ACTIVE_ALONE, pb.Role_ROLE_STANDBY}[i])
	}
	a := nodes[0]
	a.waitFor(pb.Role_ROLE_ACTIVE)
	for _, q := range []string{"small", "large", "third"} {
		a.createQueue(q)
	}
	a.publish("small", "one")
	a.publish("large", "one", "two", "three", "four")
	_, err := a.maintenance.PutJob(t.Context(), &pb.PutJobRequest{Job: &pb.Job{
		Name: "nightly", Schedule: "0 3 * * *",
		Kind: "backup",
	}})
	require.NoError(t, err)
	c := a.consume("large", 10)
	got := c.take(4)
	require.NoError(t, c.stream.Send(&pb.ConsumeRequest{Nack: span(got[3].GetSequence(), got[3].GetSequence())}))
	again := c.take(1)
	require.Equal(t, got[3].GetSequence(), again[0].GetSequence())
	c.confirm(&pb.ConsumeRequest{Ack: span(got[0].GetSequence(), got[1].GetSequence()), Confirm: 1})

	table := make(map[string]metrics.Metric)
	for _, m := range metrics.All() {
		table[m.Name] = m
	}
	seen := make(map[string]bool)
	for i := range nodes {
		_, types := scrape(t, addresses[i])
		for name, kind := range types {
			if strings.HasPrefix(name, "lockstep_") {
				require.Equal(t, table[name].Type, kind, name)
				seen[name] = true
			}
		}
	}
	for name, m := range table {
		switch m.When {
		case "with `coordinator.type: raft`", "with TLS", "while an operation runs", "with `tracing.endpoint`",
			"on the standby, while it receives a snapshot",
			"with `fleet.pair`", "on the active node, with `fleet.pair`",
			"with `fleet.pair`, after the first move since the node's start",
			"with `site.name`, or in a group of sites", "on the active node of a replica site",
			"on the active node of a replica site, after its first connection":
		default:
			require.True(t, seen[name], "%s is in the table and not exported", name)
		}
	}

	v, _ := scrape(t, addresses[0])
	for series, want := range map[string]float64{
		"lockstep_messages_published_total":                                                  5,
		"lockstep_messages_delivered_total":                                                  5,
		"lockstep_messages_redelivered_total":                                                1,
		"lockstep_messages_acknowledged_total":                                               2,
		"lockstep_messages_released_total":                                                   1,
		`lockstep_queue_messages{queue="large"}`:                                             2,
		`lockstep_queue_messages_published_total{queue="large"}`:                             4,
		`lockstep_subscription_messages_settled_total{queue="large",subscription="default"}`: 2,
		`lockstep_subscription_backlog_messages{queue="large",subscription="default"}`:       2,
		`lockstep_queue_messages{queue="small"}`:                                             1,
		"lockstep_consumers":                                                                 1,
		"lockstep_standby_connected":                                                         1,
		"lockstep_standby_lag_records":                                                       0,
		`lockstep_role{role="ACTIVE"}`:                                                       1,
		`lockstep_condition{condition="one-copy-only",severity="critical"}`:                  0,
		`lockstep_job_failed{job="nightly",kind="backup"}`:                                   0,
	} {
		got, ok := v[series]
		require.True(t, ok, "%s does not exist", series)
		require.InDelta(t, want, got, 0, series)
	}
	require.NotContains(t, v, `lockstep_queue_messages{queue="third"}`, "only two queues are exported")
	for _, name := range []string{"commit", "replication_ack", "log_write"} {
		require.Positive(t, v["lockstep_"+name+"_duration_seconds_count"], name)
	}
	require.Positive(t, v[`lockstep_coordinator_request_duration_seconds_count{operation="swap"}`])
	require.Positive(t, v["lockstep_connections"])
	age := v[`lockstep_queue_oldest_message_age_seconds{queue="large"}`]
	require.True(t, age > 0 && age < testTimeout.Seconds(), "%v", age)
	require.Eventually(t, func() bool { // the standby applies the transactions later
		standby, _ := scrape(t, addresses[1])
		return standby["lockstep_messages_published_total"] == 5 &&
			standby["lockstep_messages_acknowledged_total"] == 2 &&
			standby["lockstep_messages_delivered_total"] == 0
	}, testTimeout, 10*time.Millisecond)
	// Counters start at the start of the process. They do not include log records that are replayed.
	nodes[1].stop()
	b := start(t, nodes[1].config)
	b.waitFor(pb.Role_ROLE_STANDBY)
	standby, _ := scrape(t, addresses[1])
	require.Zero(t, standby["lockstep_messages_published_total"])
	require.InDelta(t, 4, standby[`lockstep_queue_messages_published_total{queue="large"}`], 0)
}
