// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/lockstep-mq/lockstep/store/units"
)

// diskInterval is how often the free space is looked at.
const diskInterval = 500 * time.Millisecond

// watchDisk looks at the free space until ctx ends.
func (n *node) watchDisk(ctx context.Context) {
	ticker := time.NewTicker(diskInterval)
	defer ticker.Stop()
	for {
		n.lookAtDisk()
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
	}
}

func (n *node) lookAtDisk() {
	available, tail, err := n.store.Room()
	if err != nil {
		return // what is wrong with the store is told elsewhere
	}
	// The next checkpoint writes what is in memory, and that space is as good as taken.
	low := available < uint64(n.settings.Live().Disk.LowWatermark.Bytes())+tail
	if !n.serving.SetDiskLow(low) {
		return
	}
	free := zap.String("free", units.Bytes(available))
	besides := zap.String("in_memory", units.Bytes(tail))
	limit := zap.Stringer("disk.low-watermark", n.settings.Live().Disk.LowWatermark)
	if low {
		n.log.Error("the disk is nearly full: publishes are refused until messages are acknowledged or space is freed",
			free, besides, limit)
	} else {
		n.log.Info("the disk has room again: publishes are accepted", free, besides, limit)
	}
}

// room tells whether a standby may take in what the active sends. It leaves the active when less than half of
// disk.low-watermark is free besides what the messages in memory will take in page.db, so that there is enough left to
// write checkpoints, to stop and to start. It comes back when there is an eighth of it more.
func (n *node) room(bytes int) error {
	free, tail, err := n.store.Room()
	if err != nil {
		return nil //nolint:nilerr // the write will say what is wrong
	}
	mark := uint64(n.settings.Live().Disk.LowWatermark.Bytes())
	need := mark/2 + tail + 2*uint64(bytes)
	if n.standbyFull.Load() {
		need += mark / 8
	}
	full := free < need
	if n.standbyFull.Swap(full) != full {
		n.monitor.wake()
	}
	if !full {
		return nil
	}
	return fmt.Errorf("%s are free, and %s are needed", units.Bytes(free), units.Bytes(need))
}
