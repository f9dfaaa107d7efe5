// SPDX-License-Identifier: Apache-2.0

package measure

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/lockstep-mq/lockstep/cmd/internal/bench"
	"github.com/stretchr/testify/require"
)

func TestParseNATS(t *testing.T) {
	results, err := parseNATS([]byte("peer\tworkload\tsize\tmsgs/s\tp50_ms\tp99_ms\tserver_cpu_s\tnote\n"+
		"nats-r1\tpub64\t512\t96000\t0.600\t1.500\t11.20\t\n"+
		"nats-r1\tconsume\t512\t184000\t-\t-\t5.10\tn=920000 drained_in=5.20s left=0\n"+
		"nats-r3\tfailover\t512\t-\t812\t-\t-\tround=0\n"), 10*time.Second)
	require.NoError(t, err)
	require.Len(t, results, 2)
	require.Equal(t, CasePub64, results[0].Case)
	require.Equal(t, 960_000, results[0].Messages)
	require.InDelta(t, 1.5, results[0].P99, 0)
	require.Equal(t, 920_000, results[1].Messages)
	require.InDelta(t, 5, results[1].Seconds, 0.001)
	_, err = parseNATS([]byte("nats-r1\tpub1\t512\t10\t1\t1\t1\tfailed=3\n"), time.Second)
	require.Error(t, err)
	require.Contains(t, err.Error(), "the workload")
}

func TestParseChronicle(t *testing.T) {
	results, err := parseChronicle([]byte("burst\twrite_ms\twrite_msg_s\twrite_MB_s\tread_ms\tread_msg_s\tread_MB_s\n"+
		"1\t500\t4000000\t2048\t80\t25000000\t12800\nmedian\t500\t4000000\t2048\t80\t25000000\t12800\n"),
		ChronicleOptions{SizeBytes: 512, Messages: 2_000_000})
	require.NoError(t, err)
	require.Len(t, results, 2)
	require.Equal(t, CaseRead, results[1].Case)
	require.InDelta(t, 25e6, results[1].Rate, 0)
}

// The output of programs like those of the peers is parsed and compared with the results of Lockstep.
func TestPeers(t *testing.T) {
	dir := t.TempDir()
	_, err := FindPeer(PeerNATS, "", "")
	require.ErrorIs(t, err, ErrNoPeer)
	_, err = FindPeer(PeerNATS, dir, "")
	require.ErrorIs(t, err, ErrNoPeer)
	script := "#!/bin/sh\n[ \"$SIZES $DUR $1\" = \"512 15000 2s r1\" ] || { echo \"wrong: $SIZES $DUR $1\" >&2; exit 1; }\n" +
		"printf 'nats-r1\\tpub64\\t512\\t%s\\t1\\t2\\t3\\t\\n' 50000\n"
	require.NoError(t, os.WriteFile(filepath.Join(dir, "run"), []byte(script), 0o700))
	p, err := FindPeer(PeerNATS, dir, "")
	require.NoError(t, err)
	results, err := NATS(t.Context(), p, NATSOptions{
		Config: "r1", Sizes: []int{512, 15000}, Duration: 2 * time.Second,
		Dir: dir,
	})
	require.NoError(t, err)
	_, err = NATS(t.Context(), p, NATSOptions{Config: "r3"})
	require.Error(t, err)
	require.Contains(t, err.Error(), "wrong:", "its stderr")

	var c Comparisons
	c.Peer("nats-r1", "off", results[0])
	for _, rate := range []float64{90_000, 110_000, 100_000} {
		c.Ours(bench.Result{Case: CasePub64, Sync: "off", SizeBytes: 512, Rate: rate})
	}
	require.Equal(t, 100_000, c.Messages(CasePub64, "off", 512))
	list := c.List()
	require.Len(t, list, 2, "64 outstanding requests are compared with pipelining, too")
	require.InDelta(t, 2, list[0].Peers[0].Ratio, 0)
	require.InDelta(t, 110_000, list[0].Ours.RateMax, 0)
	require.Equal(t, CasePipelined, list[1].Case)
}

func TestMeasurementLock(t *testing.T) {
	name := filepath.Join(t.TempDir(), "lock")
	unlock, err := Lock(t.Context(), name, func() { t.Error("the lock is free") })
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	waited := false
	_, err = Lock(ctx, name, func() { waited = true; cancel() })
	require.ErrorIs(t, err, context.Canceled)
	require.True(t, waited)
	require.NoError(t, unlock())
	unlock, err = Lock(t.Context(), name, nil)
	require.NoError(t, err)
	require.NoError(t, unlock())
}
