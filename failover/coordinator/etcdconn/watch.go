// SPDX-License-Identifier: Apache-2.0

package etcdconn

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
)

const relistDelay = 200 * time.Millisecond

// ErrReplaced is returned if responses belong to different histories of etcd: it was restored, emptied or replaced.
var ErrReplaced = errors.New("watch: etcd was restored or replaced")

var errSilent = errors.New("watch: no response from etcd")

// WatchOptions configures NewWatch. All functions are required.
type WatchOptions struct {
	Client *clientv3.Client
	// Prefix is the prefix of the watched keys.
	Prefix string
	// RequestTimeout limits the time until the stream is open. An open stream without a response for one to two times
	// RequestTimeout is considered broken.
	RequestTimeout time.Duration
	// PageKeys is the limit of keys in a response to List. 0: no limit.
	PageKeys int64
	// Get reads keys linearizably for List, and calls Check.
	Get func(ctx context.Context, key string, opts ...clientv3.OpOption) (*clientv3.GetResponse, error)
	// Probe sends a request before the stream is opened. It detects an outage even if no stream can be opened.
	Probe func(ctx context.Context) error
	// Load lists the keys with List, and returns the result of List.
	Load func(ctx context.Context) (*etcdserverpb.ResponseHeader, error)
	// Apply applies changes that are newer than the last list, at least one.
	Apply func(events []*mvccpb.Event)
	// Ended receives the reason each time the watch ends, also if ctx has ended.
	Ended func(err error)
}

// Watch lists the keys with a prefix and watches their changes. Run calls the functions in WatchOptions sequentially.
// The methods are safe for concurrent use.
type Watch struct {
	opts    WatchOptions
	history history
	// replaced is signaled after a response that belongs to another history.
	replaced chan struct{}
}

// NewWatch creates a Watch. It sends no requests.
func NewWatch(o WatchOptions) *Watch { return &Watch{opts: o, replaced: make(chan struct{}, 1)} }

// Run lists the keys and watches their changes until ctx ends. It lists them again after every interruption. It must
// be called once.
func (w *Watch) Run(ctx context.Context) {
	for ctx.Err() == nil {
		w.opts.Ended(w.once(ctx))
		select {
		case <-ctx.Done():
		case <-time.After(relistDelay):
		}
	}
}

// once lists the keys, and watches their changes until the stream ends.
//
// Unlike the client library's watch, the stream is never resumed. If etcd was restored from a backup, or emptied, its
// new history may reach a previously seen revision only later. A watch from that revision reports nothing until then.
// So the keys are listed after the stream is opened, which detects a replaced history.
func (w *Watch) once(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if err := w.opts.Probe(ctx); err != nil {
		return err
	}
	stream, err := w.openStream(ctx, cancel)
	if err != nil {
		return err
	}
	select {
	case <-w.replaced: // obsolete after the list below
	default:
	}
	listed, err := w.opts.Load(ctx)
	if err != nil {
		return err
	}
	return w.follow(ctx, cancel, stream, listed)
}

// List calls yield for all keys with a prefix, at one revision, in ascending order. It returns the header of the first
// response. The error wraps ErrReplaced if the pages belong to different histories, or the error of Get.
func (w *Watch) List(
	ctx context.Context, prefix string, yield func(*mvccpb.KeyValue),
) (*etcdserverpb.ResponseHeader, error) {
	key, end := prefix, clientv3.GetPrefixRangeEnd(prefix)
	var header *etcdserverpb.ResponseHeader
	for {
		opts := []clientv3.OpOption{clientv3.WithRange(end), clientv3.WithLimit(w.opts.PageKeys)}
		if header != nil {
			opts = append(opts, clientv3.WithRev(header.Revision))
		}
		resp, err := w.opts.Get(ctx, key, opts...)
		if err != nil {
			return nil, fmt.Errorf("list: %w", err)
		}
		if header == nil {
			header = resp.Header
		} else if header.ClusterId != resp.Header.ClusterId || resp.Header.Revision < header.Revision {
			return nil, fmt.Errorf("list: %w", ErrReplaced)
		}
		for _, kv := range resp.Kvs {
			yield(kv)
		}
		if !resp.More {
			return header, nil
		}
		key = string(resp.Kvs[len(resp.Kvs)-1].Key) + "\x00"
	}
}

// openStream opens a stream of changes. If etcd does not respond within the request timeout, openStream calls cancel,
// which must cancel ctx.
func (w *Watch) openStream(
	ctx context.Context, cancel context.CancelFunc,
) (etcdserverpb.Watch_WatchClient, error) {
	limit := time.AfterFunc(w.opts.RequestTimeout, cancel)
	defer limit.Stop()
	// WithRequireLeader: a member without a leader ends the watch.
	stream, err := etcdserverpb.NewWatchClient(w.opts.Client.ActiveConnection()).Watch(
		clientv3.WithRequireLeader(ctx), grpc.MaxCallRecvMsgSize(math.MaxInt32))
	if err != nil {
		return nil, fmt.Errorf("watch: %w", err)
	}
	err = stream.Send(&etcdserverpb.WatchRequest{RequestUnion: &etcdserverpb.WatchRequest_CreateRequest{
		CreateRequest: &etcdserverpb.WatchCreateRequest{
			Key: []byte(w.opts.Prefix), RangeEnd: []byte(clientv3.GetPrefixRangeEnd(w.opts.Prefix)),
		},
	}})
	if err != nil && !errors.Is(err, io.EOF) { // Recv returns the reason
		return nil, fmt.Errorf("watch: %w", err)
	}
	resp, err := stream.Recv()
	if err != nil {
		return nil, fmt.Errorf("watch: %w", err)
	}
	if resp.Canceled {
		return nil, fmt.Errorf("watch: rejected by etcd: %s", resp.CancelReason)
	}
	return stream, nil
}

type received struct {
	resp *etcdserverpb.WatchResponse
	err  error
}

// follow applies the changes of a stream until it ends. Then it calls cancel, which must cancel ctx and end the stream.
func (w *Watch) follow(
	ctx context.Context, cancel context.CancelFunc, stream etcdserverpb.Watch_WatchClient,
	listed *etcdserverpb.ResponseHeader,
) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	responses := make(chan received)
	wg.Go(func() {
		for {
			resp, err := stream.Recv()
			select {
			case responses <- received{resp, err}:
			case <-ctx.Done():
				return
			}
			if err != nil {
				return
			}
		}
	})
	// Without changes the stream is idle: request progress notifications to detect a broken connection.
	ticker := time.NewTicker(w.opts.RequestTimeout)
	defer ticker.Stop()
	requested := false
	for {
		select {
		case r := <-responses:
			if r.err != nil {
				return fmt.Errorf("watch: %w", r.err)
			}
			requested = false
			if err := w.process(r.resp, listed); err != nil {
				return err
			}
		case <-ticker.C:
			if requested {
				return errSilent
			}
			err := stream.Send(&etcdserverpb.WatchRequest{RequestUnion: &etcdserverpb.WatchRequest_ProgressRequest{
				ProgressRequest: &etcdserverpb.WatchProgressRequest{},
			}})
			if err != nil && !errors.Is(err, io.EOF) {
				return fmt.Errorf("watch: %w", err)
			}
			requested = true
		case <-w.replaced:
			return ErrReplaced
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (w *Watch) process(resp *etcdserverpb.WatchResponse, listed *etcdserverpb.ResponseHeader) error {
	h := resp.Header
	switch {
	case resp.Canceled:
		return fmt.Errorf("watch: canceled by etcd: %s", resp.CancelReason)
	case h.GetClusterId() != listed.GetClusterId():
		return ErrReplaced
	case len(resp.Events) == 0 && h.GetRevision() < listed.GetRevision():
		return ErrReplaced // behind a proxy that keeps the stream open; or a lagging member, where a new list is harmless
	}
	// The stream was opened before the list, which may be newer than the first events.
	events := slices.DeleteFunc(resp.Events, func(ev *mvccpb.Event) bool { return ev.Kv.ModRevision <= listed.Revision })
	if len(events) > 0 {
		w.opts.Apply(events)
	}
	return nil
}
