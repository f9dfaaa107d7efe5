// SPDX-License-Identifier: Apache-2.0

package site

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/google/uuid"
	"github.com/klauspost/compress/zstd"
	"google.golang.org/grpc"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/store"
	"github.com/lockstep-mq/lockstep/store/backup"
	"github.com/lockstep-mq/lockstep/store/checkpoint"
	"github.com/lockstep-mq/lockstep/store/datadir"
	"github.com/lockstep-mq/lockstep/store/lsn"
	"github.com/lockstep-mq/lockstep/store/vfs"
)

// SeedOptions configures Seed.
type SeedOptions struct {
	Name string            // site.name of the replica
	From []string          // addresses of nodes of the primary
	Dial []grpc.DialOption // see DialOptions
	Dir  string            // data directory; must be empty or must not exist
	FS   vfs.FS            // by default the operating system's filesystem
	// SegmentBytes is the size of the log segments; 0 means the default.
	SegmentBytes int64
	// Progress, if not nil, is called periodically.
	Progress func(checkpoint.Progress)
}

// Seeded is the result of Seed or Drill.
type Seeded struct {
	backup.Received

	Primary *pb.SiteState
	// Upstream is the position, in the log of the primary, of the last record in the data directory. The replica
	// continues after it.
	Upstream lsn.Position
	// DataBytes is the size of the snapshot.
	DataBytes uint64
	// Lineage is the new lineage of a detached copy. It is zero for a replica.
	Lineage uuid.UUID
}

// Seed creates the data directory of the first node of a replica site from a snapshot of the primary. A node that
// starts from the directory is a replica. After an error, Seed removes its files if possible. A node does not start
// from files that could not be removed.
//
// If the replica does not connect within 10 minutes, Seed may need to be repeated.
//
// Errors include ErrUnreachable, ErrRole, ErrBehind, and those of datadir.CheckRestore and backup.Receive.
func Seed(ctx context.Context, o SeedOptions) (Seeded, error) {
	var res Seeded
	if o.FS == nil {
		o.FS = vfs.OS()
	}
	if err := datadir.CheckRestore(o.FS, o.Dir); err != nil {
		return res, fmt.Errorf("prepare the data directory: %w", err)
	}
	r := newRemote(&Options{
		Name: o.Name, Remote: o.From, Dial: o.Dial, Addresses: func() []string { return nil },
	})
	defer r.close()
	address, _, err := r.find(ctx)
	if err != nil {
		return res, err
	}
	c, err := r.client(address)
	if err != nil {
		return res, err
	}
	return receive(ctx, c.PullSnapshot, &o, false)
}

// receive creates a data directory from the snapshot of a node. If detached is set, the copy is independent of
// the pair of that node.
func receive(ctx context.Context, pull PullSnapshot, o *SeedOptions, detached bool) (Seeded, error) {
	var res Seeded
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := pull(ctx, &pb.PullSnapshotRequest{Site: o.Name, Detached: detached},
		grpc.MaxCallRecvMsgSize(maxResponseBytes))
	if err != nil {
		return res, fromStatus(err)
	}
	first, err := stream.Recv()
	if err != nil {
		return res, streamError(ctx, err)
	}
	snap := first.GetSnapshot()
	res.Primary, res.DataBytes = snap.GetPrimary(), snap.GetDataBytes()
	res.Upstream = positionFromProto(snap.GetPosition())
	var lineage uuid.UUID // nil for a pair without sites
	if text := res.Primary.GetLineage(); text != "" || !detached {
		if lineage, err = uuid.Parse(text); err != nil {
			return res, fmt.Errorf("lineage of the primary: %w", err)
		}
	}
	if detached {
		res.Lineage = uuid.New()
	}
	p := pieces{ctx: ctx, stream: stream}
	if p.decoder, err = newDecompressor(); err != nil {
		return res, err
	}
	defer p.decoder.Close()
	res.Received, err = backup.Receive(ctx, o.Dir, backup.ReceiveOptions{
		FS: o.FS, Name: fmt.Sprintf("%s-lsn%d", cmp.Or(res.Primary.GetName(), "pair"), res.Upstream.LSN),
		Header: store.SnapshotHeader{
			Position: res.Upstream, FileBytes: snap.GetFileBytes(), DataBytes: snap.GetDataBytes(),
			PageSize: int(snap.GetPageSize()),
		},
		Next: p.next, Lineage: lineage, Detached: res.Lineage, SegmentBytes: o.SegmentBytes, Progress: o.Progress,
	})
	if err != nil {
		return res, fmt.Errorf("receive snapshot: %w", err)
	}
	return res, nil
}

// pieces reads the pieces of a snapshot from a stream.
type pieces struct {
	ctx     context.Context //nolint:containedctx // of the stream
	stream  grpc.ServerStreamingClient[pb.PullSnapshotResponse]
	decoder *zstd.Decoder
}

// next implements backup.ReceiveOptions.Next.
func (p *pieces) next() (offset uint64, data []byte, err error) {
	resp, err := p.stream.Recv()
	switch {
	case err != nil:
		return 0, nil, streamError(p.ctx, err)
	case resp.GetFinished():
		return 0, nil, io.EOF
	case max(uint64(len(resp.GetData())), uint64(resp.GetUncompressedBytes())) > maxPieceBytes:
		return 0, nil, fmt.Errorf("%w: piece at offset %d has more than %d bytes", backup.ErrCorrupt, resp.GetOffset(),
			maxPieceBytes)
	}
	data, err = decompress(p.decoder, resp.GetData(), resp.GetUncompressedBytes())
	if err != nil {
		return 0, nil, fmt.Errorf("%w: piece at offset %d: %w", backup.ErrCorrupt, resp.GetOffset(), err)
	}
	if len(data) == 0 || checksumOf(data) != resp.GetChecksum() {
		return 0, nil, fmt.Errorf("%w: checksum of the piece at offset %d does not match", backup.ErrCorrupt,
			resp.GetOffset())
	}
	return resp.GetOffset(), data, nil
}

// streamError converts the error of a stream that ended before its last response.
func streamError(ctx context.Context, err error) error {
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("receive snapshot: %w", ctx.Err())
	case errors.Is(err, io.EOF):
		return fmt.Errorf("%w: the stream ended before the last piece of the snapshot", ErrUnreachable)
	default:
		return fromStatus(err)
	}
}
