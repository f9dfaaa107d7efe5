// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/lockstep-mq/lockstep/server/observe/conditions"
	"github.com/lockstep-mq/lockstep/store/units"
)

const diskInterval = 500 * time.Millisecond

func (n *node) checkDisk() {
	room, err := n.store.Room()
	if err != nil {
		return // failures of the store are reported elsewhere
	}
	mark := uint64(n.settings.Live().Disk.LowWatermark.Bytes())
	nearly := room.NearlyLow(mark)
	n.store.SetSpaceShort(nearly)
	if nearly {
		n.site.ReleaseLog()
	}
	low := room.Low(mark)
	if !n.serving.SetDiskLow(low) {
		return
	}
	free := zap.String("free", units.Bytes(room.FreeBytes))
	pages := zap.String("free_pages", units.Bytes(room.PageBytes+room.PendingBytes))
	outside := zap.String("in_memory", units.Bytes(room.TailBytes))
	limit := zap.Stringer("disk.low-watermark", n.settings.Live().Disk.LowWatermark)
	if low {
		n.log.Error("disk nearly full, publishes rejected; "+conditions.DiskAdvice(&room, mark),
			free, pages, outside, limit)
	} else {
		n.log.Info("disk has enough free space, publishes accepted", free, pages, outside, limit)
	}
}

// standbySpace returns an error if this standby must not accept the given number of bytes from the active: less than
// half of disk.low-watermark would remain free. After such an error, it requires five eighths of it.
func (n *node) standbySpace(bytes int) error {
	room, err := n.store.Room()
	if err != nil {
		return nil //nolint:nilerr // the write itself will fail with the cause
	}
	mark := uint64(n.settings.Live().Disk.LowWatermark.Bytes())
	need, full := room.Held(mark, uint64(bytes))
	if n.standbyFull.Load() {
		need += mark / 8
		full = room.FreeBytes < need
	}
	if n.standbyFull.Swap(full) != full {
		n.monitor.wake()
	}
	if !full {
		return nil
	}
	return fmt.Errorf("%s free, %s required", units.Bytes(room.FreeBytes), units.Bytes(need))
}

// fileSpace returns an error if less than disk.low-watermark would remain free after a file of the given size is
// written.
func (n *node) fileSpace(bytes uint64) error {
	room, err := n.store.Room()
	if err != nil {
		return nil //nolint:nilerr // the write itself will fail with the cause
	}
	if need := uint64(n.settings.Live().Disk.LowWatermark.Bytes()) + bytes; room.FreeBytes < need {
		return fmt.Errorf("%s free, %s required", units.Bytes(room.FreeBytes), units.Bytes(need))
	}
	return nil
}
