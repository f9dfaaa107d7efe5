// SPDX-License-Identifier: Apache-2.0

package site

import (
	"context"
	"fmt"

	"google.golang.org/grpc"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/store/checkpoint"
	"github.com/lockstep-mq/lockstep/store/datadir"
	"github.com/lockstep-mq/lockstep/store/vfs"
)

// PullSnapshot opens a stream with a snapshot of a node.
type PullSnapshot func(
	ctx context.Context, req *pb.PullSnapshotRequest, o ...grpc.CallOption,
) (grpc.ServerStreamingClient[pb.PullSnapshotResponse], error)

// DrillOptions configures Drill.
type DrillOptions struct {
	Pull PullSnapshot // called on the active of a pair in any role
	Dir  string       // data directory; must be empty or must not exist
	FS   vfs.FS       // by default the operating system's filesystem
	// SegmentBytes is the size of the log segments; 0 means the default.
	SegmentBytes int64
	// Progress, if not nil, is called periodically.
	Progress func(checkpoint.Progress)
}

// Drill creates a data directory with a writable copy of a pair. The copy has a new identity and is the primary of a
// new lineage. The original pair is not changed. After an error, Drill removes its files if possible. A node does not
// start from files that could not be removed.
//
// Errors include ErrUnreachable and those of datadir.CheckRestore and backup.Receive.
func Drill(ctx context.Context, o DrillOptions) (Seeded, error) {
	if o.FS == nil {
		o.FS = vfs.OS()
	}
	if err := datadir.CheckRestore(o.FS, o.Dir); err != nil {
		return Seeded{}, fmt.Errorf("prepare the data directory: %w", err)
	}
	return receive(ctx, o.Pull, &SeedOptions{
		Dir: o.Dir, FS: o.FS, SegmentBytes: o.SegmentBytes, Progress: o.Progress,
	}, true)
}
