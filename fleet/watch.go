// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
)

const (
	pageKeys    = 10_000
	reloadDelay = 200 * time.Millisecond
)

var (
	errSilent   = errors.New("watch: no response from etcd")
	errReplaced = errors.New("watch: etcd was restored or replaced")
)

// history contains the ID of the responding cluster, and its last revision.
type history struct {
	mu      sync.Mutex // guards the fields below
	cluster uint64     // 0: no response yet
	last    int64
}

func (h *history) revision() int64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.last
}

// isOther records the cluster and the revision of a response to a linearizable request. It reports whether the
// response belongs to another history: another cluster, or a revision below the one known at the time of the request.
func (h *history) isOther(header *etcdserverpb.ResponseHeader, before int64) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	cluster, revision := header.GetClusterId(), header.GetRevision()
	other := h.cluster != 0 && h.cluster != cluster || revision < before
	if other {
		h.last = revision
	}
	h.cluster, h.last = cluster, max(h.last, revision)
	return other
}

// Run loads the directory and keeps the copy current until ctx ends. It must be called once. After an interruption, it
// loads the directory again; in the meantime, the old copy remains. It returns the error of ctx.
func (d *Directory) Run(ctx context.Context) error {
	for ctx.Err() == nil {
		err := d.watchOnce(ctx)
		d.update(func() { d.current = false })
		d.log.Debug("watch of the directory restarted", zap.Error(err))
		select {
		case <-ctx.Done():
		case <-time.After(reloadDelay):
		}
	}
	return ctx.Err()
}

// watchOnce loads the directory, and watches it until the stream ends.
//
// Unlike the client library's watch, the stream is never resumed. If etcd was restored from a backup, or emptied, its
// new history may reach a previously seen revision only later, and a watch from that revision reports nothing until
// then. So the keys are listed after the stream is opened, which detects a replaced history.
func (d *Directory) watchOnce(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	if _, err := d.get(ctx, d.prefix+keyFleet); err != nil { // waits for a connection
		return err
	}
	stream, err := d.openWatch(ctx, cancel)
	if err != nil {
		return err
	}
	select {
	case <-d.replaced: // obsolete after the list below
	default:
	}
	before := d.known()
	loaded, header, err := d.load(ctx)
	if err != nil {
		return err
	}
	if err := problem(loaded.head, before); errors.Is(err, ErrRestored) {
		loaded.restored = true
		if err := d.check(ctx, loaded.head, before); errors.Is(err, ErrUnavailable) {
			return err
		}
	}
	d.update(func() {
		d.copy, d.current = loaded, true
		d.seeLocked(loaded.head)
	})
	return d.follow(ctx, &wg, stream, header)
}

// load reads the directory at one revision.
func (d *Directory) load(ctx context.Context) (*contents, *etcdserverpb.ResponseHeader, error) {
	c := newContents(d.prefix)
	header, err := d.list(ctx, "", func(kv *mvccpb.KeyValue) { c.put(string(kv.Key), kv.Value) })
	return c, header, err
}

// list calls yield for all keys of a kind, at one revision, in ascending order.
func (d *Directory) list(
	ctx context.Context, kind string, yield func(*mvccpb.KeyValue),
) (*etcdserverpb.ResponseHeader, error) {
	key, end := d.prefix+kind, clientv3.GetPrefixRangeEnd(d.prefix+kind)
	var header *etcdserverpb.ResponseHeader
	for {
		opts := []clientv3.OpOption{clientv3.WithRange(end), clientv3.WithLimit(pageKeys)}
		if header != nil {
			opts = append(opts, clientv3.WithRev(header.Revision))
		}
		resp, err := d.get(ctx, key, opts...)
		if err != nil {
			return nil, fmt.Errorf("list: %w", err)
		}
		if header == nil {
			header = resp.Header
		} else if header.ClusterId != resp.Header.ClusterId || resp.Header.Revision < header.Revision {
			return nil, fmt.Errorf("list: %w: %w", ErrUnavailable, errReplaced)
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

// openWatch opens a stream of changes. If etcd does not respond within the request timeout, openWatch calls cancel,
// which must cancel ctx.
func (d *Directory) openWatch(ctx context.Context, cancel context.CancelFunc) (etcdserverpb.Watch_WatchClient, error) {
	limit := time.AfterFunc(d.opts.RequestTimeout, cancel)
	defer limit.Stop()
	// WithRequireLeader: a member without a leader ends the watch.
	stream, err := etcdserverpb.NewWatchClient(d.client.ActiveConnection()).Watch(
		clientv3.WithRequireLeader(ctx), grpc.MaxCallRecvMsgSize(math.MaxInt32))
	if err != nil {
		return nil, fmt.Errorf("watch: %w", err)
	}
	err = stream.Send(&etcdserverpb.WatchRequest{RequestUnion: &etcdserverpb.WatchRequest_CreateRequest{
		CreateRequest: &etcdserverpb.WatchCreateRequest{
			Key: []byte(d.prefix), RangeEnd: []byte(clientv3.GetPrefixRangeEnd(d.prefix)),
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

func (d *Directory) follow(
	ctx context.Context, wg *sync.WaitGroup, stream etcdserverpb.Watch_WatchClient, listed *etcdserverpb.ResponseHeader,
) error {
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
	// Without changes the stream is idle, so request progress notifications to detect a broken connection.
	ticker := time.NewTicker(d.opts.RequestTimeout)
	defer ticker.Stop()
	requested := false
	for {
		select {
		case r := <-responses:
			if r.err != nil {
				return fmt.Errorf("watch: %w", r.err)
			}
			requested = false
			if err := d.process(r.resp, listed); err != nil {
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
		case <-d.replaced:
			return errReplaced
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (d *Directory) process(resp *etcdserverpb.WatchResponse, listed *etcdserverpb.ResponseHeader) error {
	h := resp.Header
	switch {
	case resp.Canceled:
		return fmt.Errorf("watch: canceled by etcd: %s", resp.CancelReason)
	case h.GetClusterId() != listed.GetClusterId():
		return errReplaced
	case len(resp.Events) == 0 && h.GetRevision() < listed.GetRevision():
		return errReplaced // behind a proxy that keeps the stream open; or a lagging member, where a new list is harmless
	case len(resp.Events) == 0:
		return nil
	}
	d.update(func() {
		for _, ev := range resp.Events {
			switch {
			case ev.Kv.ModRevision <= listed.Revision: // the list, which is newer than the stream, contains it
			case ev.Type == mvccpb.DELETE:
				d.copy.remove(string(ev.Kv.Key))
			default:
				d.copy.put(string(ev.Kv.Key), ev.Kv.Value)
			}
		}
		d.seeLocked(d.copy.head)
	})
	return nil
}
