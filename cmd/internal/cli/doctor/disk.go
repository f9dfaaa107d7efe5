// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/lockstep-mq/lockstep/cmd/internal/output"
	"github.com/lockstep-mq/lockstep/store/vfs"
)

const (
	syncs           = 300
	concurrentSyncs = 30 // next to a running node, to limit the load
	syncBytes       = 4096
	slowSync        = 20 * time.Millisecond // median
	verySlowSync    = 200 * time.Millisecond
)

// nearest returns the directory or its nearest existing parent. made reports whether the directory exists.
func nearest(dir string) (location string, made bool) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return ".", false
	}
	for location = dir; ; location = filepath.Dir(location) {
		if st, err := os.Stat(location); err == nil && st.IsDir() || location == filepath.Dir(location) {
			return location, location == dir
		}
	}
}

func checkSpace(_ context.Context, in *inspector) []Finding {
	u, err := vfs.OS().Usage(in.place)
	if err != nil {
		return notChecked("the filesystem of %s: %v", in.place, err)
	}
	c := &in.cfg
	watermark := uint64(c.Disk.LowWatermark.Bytes())
	wanted := watermark + uint64(c.WAL.KeepBytes.Bytes()+2*c.Checkpoint.Bytes.Bytes()+c.WAL.SegmentBytes.Bytes())
	measured := fmt.Sprintf("%s free of %s in %s", output.Bytes(u.AvailableBytes), output.Bytes(u.TotalBytes), in.place)
	switch {
	case u.AvailableBytes < watermark:
		return one(Problem, measured, fmt.Sprintf("less than disk.low-watermark (%s): the node refuses publishes",
			c.Disk.LowWatermark), "free disk space, use a larger filesystem, or lower disk.low-watermark")
	case u.AvailableBytes < wanted:
		return one(Warning, measured, fmt.Sprintf("the log (wal.keep-bytes, checkpoint.bytes) and disk.low-watermark "+
			"alone take up to %s: publishes will be refused soon", output.Bytes(wanted)),
			"free disk space, or lower wal.keep-bytes and checkpoint.bytes")
	}
	return one(OK, measured, fmt.Sprintf("the log and disk.low-watermark use up to %s; the rest is for messages",
		output.Bytes(wanted)), "")
}

func checkDirectory(_ context.Context, in *inspector) []Finding {
	dir := in.cfg.Data.Dir
	if !in.made {
		if st, err := os.Stat(dir); err == nil && !st.IsDir() {
			return one(Problem, dir+" is a file", "the node cannot use it as its data directory",
				"set data.dir to a directory, or move the file")
		}
		if err := tryFile(in.place); err != nil {
			return one(Problem, fmt.Sprintf("%s does not exist, and %s is not writable: %v", dir, in.place, err),
				"the node cannot create it", "create the directory, and make the node's user its owner")
		}
		return one(OK, dir+" does not exist yet", "the node creates it", "")
	}
	if err := tryFile(dir); err != nil {
		return one(Problem, fmt.Sprintf("%s: %v", dir, err), "the node cannot write there",
			"make the node's user the owner of the directory (chown), or run this command as that user")
	}
	st, err := os.Stat(dir)
	if err != nil {
		return notChecked("%v", err)
	}
	mode := st.Mode().Perm()
	measured := fmt.Sprintf("%s, mode %04o", dir, mode)
	if in.owner != 0 {
		measured += fmt.Sprintf(", in use by process %d", in.owner)
	}
	switch {
	case mode&0o022 != 0:
		return one(Problem, measured, "other users of this machine can change or delete the node's files", "chmod 750 "+dir)
	case mode&0o005 != 0:
		return one(Warning, measured, "other users of this machine can read messages", "chmod 750 "+dir)
	}
	return one(OK, measured, "", "")
}

func tryFile(dir string) error {
	f, err := os.CreateTemp(dir, ".lockstep-doctor-")
	if err != nil {
		var path *fs.PathError
		if errors.As(err, &path) {
			return path.Err
		}
		return fmt.Errorf("create a file: %w", err)
	}
	return errors.Join(f.Close(), os.Remove(f.Name()))
}

// checkSync measures small synced writes: with the default setting sync=always, each commit waits for one such write on
// each node.
func checkSync(ctx context.Context, in *inspector) []Finding {
	count := syncs
	if in.owner != 0 {
		count = concurrentSyncs
	}
	times, err := measureSyncs(ctx, in.place, count)
	if err != nil {
		return one(Problem, err.Error(), "the node cannot write its log", "check permissions and free space of "+in.place)
	}
	p50, p99 := times[len(times)/2], times[min(len(times)*99/100, len(times)-1)]
	measured := fmt.Sprintf("%d writes of %s to %s: p50 %v, p99 %v", len(times), output.Bytes(syncBytes), in.place,
		p50.Round(time.Microsecond), p99.Round(time.Microsecond))
	if in.owner != 0 {
		measured += ", next to a running node"
	}
	stall := in.cfg.Disk.StallTimeout.Std()
	switch {
	case p99 > stall:
		return one(Problem, measured, fmt.Sprintf("longer than disk.stall-timeout (%v): the node would repeatedly lose its "+
			"role", stall), "use another disk")
	case in.cfg.Sync != "always":
		return one(OK, measured, "sync is "+in.cfg.Sync+": commits do not wait for it", "")
	case p50 > slowSync || p99 > verySlowSync:
		return one(Warning, measured, "each commit takes this long on both nodes: sequential publishers reach at most "+
			fmt.Sprintf("about %s per second", output.Count(int64(1/p50.Seconds()))),
			"use a disk with power-loss protection, or one without other load; concurrent publishers "+
				"share a sync")
	}
	return one(OK, measured, fmt.Sprintf("a sequential publisher reaches at most about %s messages per second",
		output.Count(int64(1/p50.Seconds()))), "")
}

func measureSyncs(ctx context.Context, dir string, count int) (times []time.Duration, err error) {
	f, err := os.CreateTemp(dir, ".lockstep-doctor-")
	if err != nil {
		return nil, fmt.Errorf("create a file: %w", err)
	}
	defer func() { err = errors.Join(err, f.Close(), os.Remove(f.Name())) }()
	// Preallocate the file, as the node preallocates its log.
	if _, err = f.Write(make([]byte, count*syncBytes)); err == nil {
		err = f.Sync()
	}
	if err != nil {
		return nil, fmt.Errorf("write: %w", err)
	}
	piece := make([]byte, syncBytes)
	for i := range piece {
		piece[i] = byte(i)
	}
	began := time.Now()
	for i := range count {
		if ctx.Err() != nil || i > 0 && time.Since(began) > syncLimit {
			break
		}
		start := time.Now()
		if _, err = f.WriteAt(piece, int64(i*syncBytes)); err == nil {
			err = dataSync(f)
		}
		if err != nil {
			return nil, fmt.Errorf("write and sync: %w", err)
		}
		times = append(times, time.Since(start))
	}
	if len(times) == 0 {
		return nil, context.Cause(ctx)
	}
	slices.Sort(times)
	return times, nil
}
