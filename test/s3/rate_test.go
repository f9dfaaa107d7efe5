// SPDX-License-Identifier: Apache-2.0

//go:build unix && deep

package s3

import (
	"bytes"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/server/objectstore/s3"
	"github.com/lockstep-mq/lockstep/store/backup"
)

// A backup has at least a fifth of the rate of a plain copy of the same bytes to the same server. The copy uses the
// same client library and the same part size. The limit is low because other processes may use the machine. To run
// it:
//
//	LOCKSTEP_S3_RATE=1 test/s3/run.sh -run TestRate -v
func TestRate(t *testing.T) {
	if os.Getenv("LOCKSTEP_S3_RATE") == "" {
		t.Skip("LOCKSTEP_S3_RATE is not set: this measurement takes half a minute")
	}
	s := startServer(t)
	s.makeBucket(minio.MakeBucketOptions{})
	d := openData(t, in(t.TempDir(), "data"))
	d.publish(2000)
	o := options(t, s.endpoint())
	o.PartBytes = s3.DefaultPartBytes
	store := openStore(t, "sets", o)
	set, err := backup.Run(t.Context(), d.s, backup.Options{Location: store}) // also a warm-up
	require.NoError(t, err)
	raw := get(t, store, set.Name+"/pages.pack")
	mb := float64(len(raw)) / 1e6
	var copies, backups, ratios []float64
	for range 5 {
		start := time.Now()
		_, err := s.client().PutObject(t.Context(), bucket, "copy", bytes.NewReader(raw), int64(len(raw)),
			minio.PutObjectOptions{PartSize: s3.DefaultPartBytes, NumThreads: s3.DefaultParallel})
		require.NoError(t, err)
		plain := time.Since(start)
		start = time.Now()
		set, err := backup.Run(t.Context(), d.s, backup.Options{Location: store})
		require.NoError(t, err)
		took := time.Since(start)
		require.NoError(t, backup.Remove(t.Context(), store, set.Name))
		copies, backups = append(copies, mb/plain.Seconds()), append(backups, mb/took.Seconds())
		ratios = append(ratios, plain.Seconds()/took.Seconds())
	}
	for _, l := range [][]float64{copies, backups, ratios} {
		slices.Sort(l)
	}
	t.Logf("%.0f MB: plain copy %.0f MB/s, backup %.0f MB/s (medians of 5, alternating); ratio %.2f (%.2f to %.2f)",
		mb, copies[2], backups[2], ratios[2], ratios[0], ratios[4])
	require.Greater(t, ratios[2], 0.2)
}
