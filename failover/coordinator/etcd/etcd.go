// SPDX-License-Identifier: Apache-2.0

// Package etcd implements a coordinator on an etcd cluster.
//
// The record is written by compare-and-swap on its mod revision; leases are only hints. The package does not use
// etcd's concurrency package.
package etcd

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/lockstep-mq/lockstep/failover"
	"github.com/lockstep-mq/lockstep/failover/coordinator/etcdconn"
	"github.com/lockstep-mq/lockstep/failover/coordinator/internal/dupdetect"
	"github.com/lockstep-mq/lockstep/failover/coordinator/internal/latest"
)

// Defaults of Options.
const (
	DefaultPrefix         = "/lockstep/default"
	DefaultLeaseTTL       = 3 * time.Second
	DefaultRequestTimeout = etcdconn.DefaultRequestTimeout
)

// Options configures Open.
type Options struct {
	// Endpoints are the addresses of the etcd members: host:port, or URLs. At least one is required.
	Endpoints []string
	// Prefix is the prefix of all keys of this pair. Default DefaultPrefix.
	Prefix string
	TLS    *tls.Config
	// Credentials, if not nil, are used instead of TLS. They are ignored if an endpoint begins with http://.
	Credentials        credentials.TransportCredentials
	Username, Password string
	// LeaseTTL is the time to live of the liveness key, rounded up to whole seconds. Default 3 s.
	LeaseTTL time.Duration
	// RequestTimeout limits background requests. Default 1 s.
	RequestTimeout time.Duration
	Logger         *zap.Logger

	sendOnce bool // disables further attempts, for tests
}

// Coordinator implements failover.Coordinator on an etcd cluster.
type Coordinator struct {
	client     *clientv3.Client
	log        *zap.Logger
	record     string // key of the record
	mark       string // key of the mark
	livedir    string // prefix of the liveness keys: the newest process of each node
	processDir string // prefix of the process keys: one for each announced process
	opts       Options

	seen  *latest.Value[failover.Observation]
	marks marks
	// The fields below are guarded by the lock of seen and only used within Update.
	processes  map[string]dupdetect.Entry // announced processes, by key
	newest     map[string]dupdetect.Entry // newest process of each node, by key
	duplicates dupdetect.Tracker
	// unaware is signaled if another process under this node's ID may not have detected this process.
	unaware chan struct{}
	// keys watches the pair's keys.
	keys *etcdconn.Watch
	// lastError is a string: the last known cause of a failed request; empty after a response.
	lastError *atomic.Value

	stop context.CancelFunc
	wg   sync.WaitGroup
}

var _ failover.Coordinator = (*Coordinator)(nil)

// Open creates a client and starts the watch. It does not wait for etcd (see Ping), and only fails for invalid options.
func Open(o Options) (*Coordinator, error) {
	o.Prefix = strings.TrimRight(cmp.Or(o.Prefix, DefaultPrefix), "/")
	o.LeaseTTL = cmp.Or(max(o.LeaseTTL, 0), DefaultLeaseTTL)
	o.RequestTimeout = cmp.Or(max(o.RequestTimeout, 0), DefaultRequestTimeout)
	o.Logger = cmp.Or(o.Logger, zap.NewNop())
	lastError := new(atomic.Value)
	client, err := etcdconn.New(etcdconn.Options{
		Endpoints: o.Endpoints, TLS: o.TLS, Credentials: o.Credentials, Username: o.Username, Password: o.Password,
		RequestTimeout: o.RequestTimeout, Logger: o.Logger,
		// The client waits for a connection and then returns only a timeout: the interceptor records the cause.
		DialOptions: []grpc.DialOption{grpc.WithChainUnaryInterceptor(recordErrors(lastError))},
	})
	if err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancel(context.Background())
	c := &Coordinator{
		client: client, log: o.Logger, record: o.Prefix + "/record", mark: o.Prefix + "/mark",
		livedir:    o.Prefix + "/live/",
		processDir: o.Prefix + "/run/", opts: o,
		processes: make(map[string]dupdetect.Entry), newest: make(map[string]dupdetect.Entry),
		unaware: make(chan struct{}, 1), seen: latest.New(failover.Observation{}), stop: stop, lastError: lastError,
	}
	c.keys = c.newWatch()
	c.wg.Go(func() { c.keys.Run(ctx) })
	return c, nil
}

// Name implements failover.Coordinator.
func (c *Coordinator) Name() string { return "etcd" }

// Ping returns nil if etcd responds, even without a record.
func (c *Coordinator) Ping(ctx context.Context) error {
	_, err := c.get(ctx, c.record)
	if err == nil {
		return nil
	}
	what := c.why(err)
	if what == "" {
		what = "check that it is running, and check the addresses, TLS and user in the configuration"
	}
	return fmt.Errorf("etcd at %s does not respond: %w: %s", strings.Join(c.opts.Endpoints, ", "), err, what)
}

func (c *Coordinator) get(ctx context.Context, key string, opts ...clientv3.OpOption) (*clientv3.GetResponse, error) {
	before := c.keys.Revision()
	resp, _, err := hedged(ctx, c.attempts(), func(ctx context.Context) (*clientv3.GetResponse, error) {
		return c.client.Get(ctx, key, opts...)
	})
	if err == nil {
		c.keys.Check(resp.Header, before)
	}
	return resp, err
}

// txn commits a transaction through the first endpoint that responds, and returns its response. For outcomeUnknown, see
// hedged.
func (c *Coordinator) txn(
	ctx context.Context, request func(clientv3.Txn) clientv3.Txn,
) (resp *clientv3.TxnResponse, outcomeUnknown bool, err error) {
	before := c.keys.Revision()
	resp, outcomeUnknown, err = hedged(ctx, c.attempts(), func(ctx context.Context) (*clientv3.TxnResponse, error) {
		return request(c.client.Txn(ctx)).Commit()
	})
	if err == nil {
		c.keys.Check(resp.Header, before)
	}
	return resp, outcomeUnknown, err
}

// attempts returns the number of attempts per request: one per endpoint, and more at larger intervals.
func (c *Coordinator) attempts() int {
	if c.opts.sendOnce {
		return 1
	}
	return len(c.opts.Endpoints) + hedgedAttempts
}

func (c *Coordinator) why(err error) string {
	what := cause(err)
	if what == "" {
		what, _ = c.lastError.Load().(string)
	}
	return what
}

// Load implements failover.Coordinator.
func (c *Coordinator) Load(ctx context.Context) (failover.Record, failover.Revision, error) {
	resp, err := c.get(ctx, c.record) // linearizable by default
	if err != nil {
		c.reportUnreachable(err)
		return failover.Record{}, 0, fmt.Errorf("load cluster record: %w: %w", failover.ErrUnreachable, err)
	}
	c.reportReachable()
	if len(resp.Kvs) == 0 {
		return failover.Record{}, 0, fmt.Errorf("key %s: %w", c.record, failover.ErrNoRecord)
	}
	rec, err := failover.DecodeRecord(resp.Kvs[0].Value)
	if err != nil {
		return failover.Record{}, 0, fmt.Errorf("key %s: %w", c.record, err)
	}
	return rec, failover.Revision(resp.Kvs[0].ModRevision), nil
}

// Swap implements failover.Coordinator.
func (c *Coordinator) Swap(
	ctx context.Context, expect failover.Revision, next failover.Record,
) (failover.Revision, error) {
	value, err := next.Encode()
	if err != nil {
		return 0, fmt.Errorf("swap cluster record: %w", err)
	}
	// The same swap may be sent to several endpoints. At most one attempt can be applied; its OpID identifies it.
	resp, outcomeUnknown, err := c.txn(ctx, func(t clientv3.Txn) clientv3.Txn {
		return t.If(clientv3.Compare(clientv3.ModRevision(c.record), "=", int64(expect))).
			Then(clientv3.OpPut(c.record, string(value))).
			Else(clientv3.OpGet(c.record))
	})
	if err != nil {
		return c.swapFailed(ctx, expect, next, outcomeUnknown, err)
	}
	c.reportReachable()
	if resp.Succeeded {
		return failover.Revision(resp.Header.Revision), nil
	}
	if kvs := resp.Responses[0].GetResponseRange().GetKvs(); len(kvs) == 1 {
		// The client library, or an earlier call, may have sent the same swap.
		if now, err := failover.DecodeRecord(kvs[0].Value); err == nil && now.OpID == next.OpID {
			return failover.Revision(kvs[0].ModRevision), nil
		}
	}
	if outcomeUnknown {
		// Another attempt may have been applied, and then overwritten.
		return 0, fmt.Errorf("swap cluster record at revision %d: %w", expect, failover.ErrUnknownOutcome)
	}
	return 0, fmt.Errorf("swap cluster record at revision %d: %w", expect, failover.ErrConflict)
}

func (c *Coordinator) swapFailed(
	ctx context.Context, expect failover.Revision, next failover.Record, outcomeUnknown bool, err error,
) (failover.Revision, error) {
	switch {
	case outcomeUnknown || !refuses(err):
		// The request may have arrived, or may still arrive (INV-8).
		return 0, fmt.Errorf("swap cluster record: %w: %w", failover.ErrUnknownOutcome, err)
	case !errors.Is(err, rpctypes.ErrNoSpace):
		return 0, fmt.Errorf("swap cluster record: %w: %s: %w", failover.ErrRefused, cause(err), err)
	}
	// The write that reaches the quota is applied, and also returns this error; later writes are not applied. The
	// write is no longer in flight, so a read determines the outcome.
	now, rev, lerr := c.Load(ctx)
	switch {
	case lerr == nil && now.OpID == next.OpID:
		return rev, nil
	case lerr == nil && rev == expect, errors.Is(lerr, failover.ErrNoRecord) && expect == 0:
		return 0, fmt.Errorf("swap cluster record: %w: %s: %w", failover.ErrRefused, cause(err), err)
	case lerr == nil || errors.Is(lerr, failover.ErrNoRecord):
		return 0, fmt.Errorf("swap cluster record at revision %d: %w", expect, failover.ErrConflict)
	default:
		return 0, fmt.Errorf("swap cluster record: %w: %w: %w", failover.ErrUnknownOutcome, err, lerr)
	}
}

// Watch implements failover.Coordinator.
func (c *Coordinator) Watch(ctx context.Context) <-chan failover.Observation {
	return c.seen.Watch(ctx)
}

// Close implements failover.Coordinator.
func (c *Coordinator) Close() error {
	c.stop()
	err := c.client.Close()
	c.wg.Wait()
	if err != nil && !errors.Is(err, context.Canceled) {
		return fmt.Errorf("etcd: close: %w", err)
	}
	return nil
}

func (c *Coordinator) reportReachable() {
	c.lastError.Store("")
	c.setReachable(true, "")
}

func (c *Coordinator) reportUnreachable(err error) {
	if errors.Is(err, context.Canceled) {
		return // canceled by this client
	}
	c.setReachable(false, c.why(err))
}

func (c *Coordinator) setReachable(ok bool, problem string) {
	changed := false
	c.seen.Update(func(o *failover.Observation) bool {
		changed = o.Reachable != ok
		newest := changed || o.Problem != problem
		o.Reachable, o.Problem = ok, problem
		return newest
	})
	switch {
	case changed && ok:
		c.log.Info("etcd is reachable", zap.Strings("endpoints", c.opts.Endpoints))
	case changed:
		c.log.Warn("etcd is unreachable; role changes are suspended",
			zap.Strings("endpoints", c.opts.Endpoints),
			zap.String("cause", problem))
	}
}
