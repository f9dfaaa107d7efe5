// SPDX-License-Identifier: Apache-2.0

// Package peerclient implements the client for the other node of the pair. It also authenticates calls of the other
// node (Authenticator), and connects to nodes of other pairs (Remotes).
package peerclient

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/server/api/apierror"
	"github.com/lockstep-mq/lockstep/server/api/protoconv"
	"github.com/lockstep-mq/lockstep/server/ops/maintenance"
	"github.com/lockstep-mq/lockstep/store"
	"github.com/lockstep-mq/lockstep/store/backup"
	"github.com/lockstep-mq/lockstep/store/checkpoint"
	"github.com/lockstep-mq/lockstep/store/lsn"
)

// During a call, the client sends a ping if it has received no data for peerPing. A node that does not respond within
// peerTimeout is unreachable.
const (
	peerPing    = 10 * time.Second // the minimum that gRPC accepts
	peerTimeout = 3 * time.Second
	peerBackoff = 500 * time.Millisecond // maximum delay between attempts to connect
)

// Peers manages the connections to the other node, which are opened on demand.
type Peers struct {
	options []grpc.DialOption // options of each connection

	mu     sync.Mutex // guards the fields below
	conns  map[string]*grpc.ClientConn
	closed bool
}

var _ maintenance.Peers = (*Peers)(nil)

// NewPeers creates a Peers. The options apply to each connection. Unless they contain transport credentials,
// connections are not encrypted. The caller must call Close.
func NewPeers(options ...grpc.DialOption) *Peers {
	return &Peers{options: options, conns: make(map[string]*grpc.ClientConn)}
}

// Close closes the connections and cancels all calls. Later calls return store.ErrClosed.
func (p *Peers) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	var errs []error
	for address, c := range p.conns {
		errs = append(errs, c.Close())
		delete(p.conns, address)
	}
	return errors.Join(errs...)
}

func (p *Peers) conn(address string) (*grpc.ClientConn, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, store.ErrClosed
	}
	if c := p.conns[address]; c != nil {
		return c, nil
	}
	c, err := grpc.NewClient("passthrough:///"+address, append([]grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: peerPing, Timeout: peerTimeout}),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff: backoff.Config{
				BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: peerBackoff,
			},
			MinConnectTimeout: peerTimeout,
		}),
	}, p.options...)...)
	if err != nil {
		return nil, fmt.Errorf("%w: %s: %w", maintenance.ErrUnreachable, address, err)
	}
	p.conns[address] = c
	return c, nil
}

// Maintenance returns the maintenance client of the node at an address.
func (p *Peers) Maintenance(address string) (pb.MaintenanceServiceClient, error) {
	c, err := p.conn(address)
	if err != nil {
		return nil, err
	}
	return pb.NewMaintenanceServiceClient(c), nil
}

// fromPeer converts a gRPC status of the other node to an error that matches the sentinel errors.
func fromPeer(err error) error {
	if err == nil {
		return nil
	}
	known := apierror.FromStatus(err)
	if _, still := status.FromError(known); still && status.Code(err) == codes.Unavailable {
		return fmt.Errorf("%w: %w", maintenance.ErrUnreachable, err)
	}
	return known
}

// At returns the operations of the node at an address.
func (p *Peers) At(address string) maintenance.Operations { return &peer{peers: p, address: address} }

// Status returns the status of the node at an address.
func (p *Peers) Status(ctx context.Context, address string) (*pb.GetStatusResponse, error) {
	c, err := p.conn(address)
	if err != nil {
		return nil, err
	}
	st, err := pb.NewAdminServiceClient(c).GetStatus(ctx, &pb.GetStatusRequest{})
	return st, fromPeer(err)
}

// Activity returns the operation in progress on the node at an address, or nil.
func (p *Peers) Activity(ctx context.Context, address string) (*maintenance.Activity, error) {
	st, err := p.Status(ctx, address)
	return protoconv.ActivityFromProto(st.GetMaintenance()), err
}

// Report reports the completed operations of this node to the active at an address.
func (p *Peers) Report(ctx context.Context, address string, r maintenance.Report) error {
	c, err := p.Maintenance(address)
	if err != nil {
		return err
	}
	_, err = c.ReportNode(ctx, &pb.ReportNodeRequest{
		NodeId: r.Node.String(), PageSizeRecommended: protoconv.Uint32(r.Recommended), StartupId: r.StartupID,
	})
	return fromPeer(err)
}

type peer struct {
	peers   *Peers
	address string
}

func follow[Req, Resp, R any](
	ctx context.Context, p *peer, req *Req,
	call func(pb.MaintenanceServiceClient, context.Context, *Req, ...grpc.CallOption) (
		grpc.ServerStreamingClient[Resp], error),
	read func(*Resp) (*pb.Progress, *R), progress func(checkpoint.Progress),
) (*R, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	c, err := p.peers.Maintenance(p.address)
	if err != nil {
		return nil, err
	}
	in, err := call(c, ctx, req)
	if err != nil {
		return nil, fromPeer(err)
	}
	for {
		resp, err := in.Recv()
		if err != nil {
			return nil, fromPeer(err)
		}
		now, result := read(resp)
		if result != nil {
			return result, nil
		}
		if progress != nil && now != nil {
			progress(protoconv.ProgressFromProto(now))
		}
	}
}

func (p *peer) Scan(
	ctx context.Context, maxPageSize int, progress func(checkpoint.Progress),
) (checkpoint.ScanResult, error) {
	r, err := follow(ctx, p, &pb.ScanRequest{PageSizeMax: protoconv.Uint32(maxPageSize)}, pb.MaintenanceServiceClient.Scan,
		func(r *pb.ScanResponse) (*pb.Progress, *pb.ScanResult) { return r.GetProgress(), r.GetResult() }, progress)
	return protoconv.ScanFromProto(r), err
}

func (p *peer) Rewrite(
	ctx context.Context, req maintenance.RewriteRequest, progress func(checkpoint.Progress),
) (maintenance.RewriteResult, error) {
	r, err := follow(ctx, p, &pb.RewriteRequest{
		PageSize: protoconv.Uint32(req.PageSize), DryRun: req.DryRun, PlanId: req.PlanID,
	},
		pb.MaintenanceServiceClient.Rewrite,
		func(r *pb.RewriteResponse) (*pb.Progress, *pb.RewriteResult) { return r.GetProgress(), r.GetResult() },
		progress)
	return protoconv.RewriteFromProto(r), err
}

func (p *peer) Shrink(ctx context.Context, dryRun bool) (maintenance.ShrinkResult, error) {
	c, err := p.peers.Maintenance(p.address)
	if err != nil {
		return maintenance.ShrinkResult{}, err
	}
	r, err := c.Shrink(ctx, &pb.ShrinkRequest{DryRun: dryRun})
	return maintenance.ShrinkResult{
		FileBytesBefore: r.GetFileBytesBefore(), FileBytesAfter: r.GetFileBytesAfter(),
	}, fromPeer(err)
}

func (p *peer) Backup(
	ctx context.Context, req maintenance.BackupRequest, progress func(checkpoint.Progress),
) (backup.Set, error) {
	set, err := follow(ctx, p, &pb.BackupRequest{
		Path: req.Path, KeepGenerations: protoconv.Uint32(req.Keep), BytesPerSecond: uint64(max(req.BytesPerSecond, 0)),
	}, pb.MaintenanceServiceClient.Backup,
		func(r *pb.BackupResponse) (*pb.Progress, *pb.SaveSet) { return r.GetProgress(), r.GetSet() }, progress)
	return protoconv.SetFromProto(set), err
}

func (p *peer) Checkpoint(ctx context.Context) error {
	c, err := p.peers.conn(p.address)
	if err != nil {
		return err
	}
	_, err = pb.NewAdminServiceClient(c).Checkpoint(ctx, &pb.CheckpointRequest{})
	return fromPeer(err)
}

func (p *peer) Digest(ctx context.Context, atLSN uint64) (checkpoint.Digest, error) {
	c, err := p.peers.conn(p.address)
	if err != nil {
		return checkpoint.Digest{}, err
	}
	r, err := pb.NewAdminServiceClient(c).GetDigest(ctx, &pb.GetDigestRequest{AtLsn: atLSN})
	if err != nil {
		return checkpoint.Digest{}, fromPeer(err)
	}
	d := checkpoint.Digest{Position: lsn.Position{LSN: r.GetLsn()}, Messages: r.GetMessages()}
	content, err := hex.DecodeString(r.GetContent())
	if err != nil || len(content) != len(d.Content) {
		return checkpoint.Digest{}, fmt.Errorf("%w: %s sent an invalid digest", maintenance.ErrUnreachable, p.address)
	}
	copy(d.Content[:], content)
	return d, nil
}

func (p *peer) Restart(ctx context.Context, planID string) (done bool, err error) {
	c, err := p.peers.Maintenance(p.address)
	if err != nil {
		return false, err
	}
	r, err := c.RestartNode(ctx, &pb.RestartNodeRequest{PlanId: planID})
	return r.GetDone(), fromPeer(err)
}
