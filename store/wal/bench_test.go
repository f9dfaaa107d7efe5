// SPDX-License-Identifier: Apache-2.0

package wal

import (
	"fmt"
	"testing"

	"github.com/lockstep-mq/lockstep/store/lsn"
	"github.com/lockstep-mq/lockstep/store/vfs"
)

// BenchmarkAppend writes blocks of 16 records, with and without a sync after each block. The reported rate counts
// only payload bytes.
func BenchmarkAppend(b *testing.B) {
	for _, mode := range []SyncMode{SyncAlways, SyncOff} {
		for _, size := range []int{100, 1000, 16_000} {
			b.Run(fmt.Sprintf("%s/%d", mode, size), func(b *testing.B) {
				o := testOptions(vfs.OS())
				o.Dir, o.SegmentBytes, o.Sync = b.TempDir()+"/log", 0, mode
				l := mustOpen(b, o)
				body := payload(1, 1, size)
				var frames []byte
				pos := l.End()
				b.SetBytes(int64(16 * size))
				b.ReportAllocs()
				for b.Loop() {
					frames = frames[:0]
					for range 16 {
						frames, pos = AppendFrame(frames, pos, 1, KindTxn, body)
					}
					if err := l.Append(frames, pos); err != nil {
						b.Fatal(err)
					}
					if err := l.Sync(); err != nil {
						b.Fatal(err)
					}
					if pos.LSN%100_000 == 0 {
						l.Release(pos.LSN)
					}
				}
			})
		}
	}
}

func BenchmarkDecodeFrame(b *testing.B) {
	for _, size := range []int{100, 1000, 16_000} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			frame, _ := AppendFrame(nil, lsn.Position{}, 1, KindTxn, payload(1, 1, size))
			b.SetBytes(int64(size))
			for b.Loop() {
				if _, _, err := DecodeFrame(frame, lsn.Position{}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
