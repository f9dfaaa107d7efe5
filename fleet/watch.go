// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"context"
	"errors"
	"fmt"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.uber.org/zap"

	"github.com/lockstep-mq/lockstep/failover/coordinator/etcdconn"
)

const pageKeys = 10_000

func (d *Directory) newWatch() *etcdconn.Watch {
	return etcdconn.NewWatch(etcdconn.WatchOptions{
		Client: d.client, Prefix: d.prefix, RequestTimeout: d.opts.RequestTimeout, PageKeys: pageKeys, Get: d.get,
		Probe: func(ctx context.Context) error { // waits for a connection
			_, err := d.get(ctx, d.prefix+keyFleet)
			return err
		},
		Load: d.reload, Apply: d.applyEvents,
		Ended: func(err error) {
			d.update(func() { d.current = false })
			d.log.Debug("watch of the directory restarted", zap.Error(err))
		},
	})
}

// Run loads the directory and keeps the copy current until ctx ends. It must be called once. After an interruption, it
// loads the directory again; in the meantime, the old copy remains. It returns the error of ctx.
func (d *Directory) Run(ctx context.Context) error {
	d.watch.Run(ctx)
	return ctx.Err()
}

// reload replaces the copy with the current directory. If the directory was restored from an older copy, reload marks
// the copy as restored, and, on the active, stops the assignments of all pairs (check).
func (d *Directory) reload(ctx context.Context) (*etcdserverpb.ResponseHeader, error) {
	before := d.known()
	loaded, header, err := d.load(ctx)
	if err != nil {
		return nil, err
	}
	if err := problem(loaded.head, before); errors.Is(err, ErrRestored) {
		loaded.restored = true
		if err := d.check(ctx, loaded.head, before); errors.Is(err, ErrUnavailable) {
			return nil, err
		}
	}
	d.update(func() {
		d.copy, d.current = loaded, true
		d.seeLocked(loaded.head)
	})
	return header, nil
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
	header, err := d.watch.List(ctx, d.prefix+kind, yield)
	if errors.Is(err, etcdconn.ErrReplaced) {
		err = fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	return header, err
}

func (d *Directory) applyEvents(events []*mvccpb.Event) {
	d.update(func() {
		for _, ev := range events {
			if ev.Type == mvccpb.DELETE {
				d.copy.remove(string(ev.Kv.Key))
			} else {
				d.copy.put(string(ev.Kv.Key), ev.Kv.Value)
			}
		}
		d.seeLocked(d.copy.head)
	})
}
