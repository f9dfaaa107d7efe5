// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/lockstep-mq/lockstep/failover/coordinator/etcdconn"
)

// Defaults of Options.
const (
	DefaultPrefix         = "/lockstep/fleet"
	DefaultRequestTimeout = 5 * time.Second
	DefaultLoadTTL        = 15 * time.Second
)

var (
	// ErrUnavailable is returned if a request to etcd fails, or if the copy is not loaded or not current. If the request
	// was a change, it may have been executed.
	ErrUnavailable = errors.New("directory unavailable")
	// ErrLost is returned if the directory does not contain the fleet of this pair.
	ErrLost = errors.New("directory lost")
	// ErrRestored is returned if the last ownership epoch in the directory is missing, or lower than one that this node
	// knows.
	ErrRestored = errors.New("directory restored from an older copy")
	// ErrRebuilding is returned during a rebuild of the directory, until all pairs have contributed to it.
	ErrRebuilding = errors.New("directory is being rebuilt")
	// ErrNotMember is returned if this pair is not a member of the fleet, or if the named pair is not registered or has
	// not finished joining or leaving.
	ErrNotMember = errors.New("pair is not a member of the fleet")
	// ErrNotActive is returned if this node is not the active of its pair.
	ErrNotActive = errors.New("node is not active")
	// ErrNoPair is returned if no pair can own the new queue, or if the state of a pair does not permit a move.
	ErrNoPair = errors.New("no pair for the queue")
	// ErrPartitions is returned for the name of a partitioned queue, and for a partition of a queue that is not
	// partitioned or has another number of partitions.
	ErrPartitions = errors.New("name belongs to a queue with another number of partitions")
	// ErrPairExists is returned if another pair has the same name, or if this pair is registered under another name.
	ErrPairExists = errors.New("pair exists")
	// ErrOwnsQueues is returned if a pair with queues would leave a fleet with other pairs.
	ErrOwnsQueues = errors.New("pair owns queues of the fleet")
	// ErrOtherName is returned if the log and the settings contain different names of this pair.
	ErrOtherName = errors.New("name of the pair in the log differs from fleet.pair")
	// ErrInvalid is returned if an argument is invalid or exceeds a limit.
	ErrInvalid = errors.New("invalid argument")
	// ErrContention is returned if concurrent changes of the directory prevented the change.
	ErrContention = errors.New("too many concurrent changes of the directory")
)

// ConflictError reports queues that other pairs own.
type ConflictError struct{ Conflicts []Conflict }

// Conflict is a queue of this pair that is assigned to another pair.
type Conflict struct {
	Queue string
	// Epoch is the ownership epoch of the queue at this pair; 0 if it has none.
	Epoch uint64
	// Pair and PairEpoch are the owner in the directory and its ownership epoch.
	Pair      string
	PairEpoch uint64
}

func (e *ConflictError) Error() string {
	names := make([]string, 0, 3)
	for _, c := range e.Conflicts[:min(len(e.Conflicts), 3)] {
		names = append(names, fmt.Sprintf("%q (%s)", c.Queue, c.Pair))
	}
	return fmt.Sprintf("%d queues are assigned to other pairs: %s", len(e.Conflicts), strings.Join(names, ", "))
}

// ValueError reports a malformed value in etcd.
type ValueError struct {
	Key string
	Err error
}

func (e *ValueError) Error() string { return fmt.Sprintf("key %s: malformed value: %v", e.Key, e.Err) }

// Unwrap returns the cause.
func (e *ValueError) Unwrap() error { return e.Err }

// PairState is the state of this pair that the directory depends on.
type PairState struct {
	// FleetID is the ID of the fleet in the log of the pair; empty if the pair is not a member.
	FleetID string
	// MaxEpoch is the highest ownership epoch in the log of the pair.
	MaxEpoch uint64
	// Term is the term in which this node is active; 0 if it is not active.
	Term uint64
}

// Options configures New.
type Options struct {
	// Client is required. The caller closes it after Run has returned.
	Client *clientv3.Client
	// Prefix is the prefix of all keys of the fleet. Default DefaultPrefix.
	Prefix string
	// Pair is the name of this pair: 1 to 63 characters of [A-Za-z0-9._-]. Required.
	Pair string
	// PairID is the permanent identity of this pair. Required.
	PairID string
	// State returns the current state of this pair. It must not block, and must not call the Directory. Required.
	State func() PairState
	// Moving reports whether a queue of this pair is fenced, or was taken by a move that has not ended. The directory may
	// assign such a queue to the other pair of the move. Like State, it must not block. Optional.
	Moving func(queue string) bool
	// RequestTimeout limits each request to etcd. Default 5 s.
	RequestTimeout time.Duration
	// LoadTTL is the time to live of the load of this pair, rounded up to seconds. Default 15 s.
	LoadTTL time.Duration
	Logger  *zap.Logger
}

// Directory is the directory of a fleet, as used by one node of a pair. It is safe for concurrent use.
type Directory struct {
	opts   Options
	client *clientv3.Client
	log    *zap.Logger
	prefix string // ends with /

	// assigning serializes the assignments of this node, so that they do not invalidate each other's counter.
	assigning chan struct{}
	// loading serializes PutLoad, and guards lease.
	loading chan struct{}
	lease   clientv3.LeaseID
	// reconciling serializes Reconcile, Rebuild, Join and Leave. It guards unclaimed: the entries that the previous call
	// of Reconcile or Rebuild has found unclaimed.
	reconciling chan struct{}
	unclaimed   map[string]string

	mu      sync.RWMutex // guards the fields below
	copy    *contents    // nil: never loaded
	current bool         // the watch is connected
	changed chan struct{}
	seen    uint64     // highest counter in any response
	seenIn  fleetValue // the fleet when seen was read

	watch *etcdconn.Watch
}

// New creates a Directory. It returns an error for invalid options only, and sends no requests.
func New(o Options) (*Directory, error) {
	if o.Client == nil || o.State == nil {
		return nil, fmt.Errorf("%w: no client or state", ErrInvalid)
	}
	if err := CheckPair(o.Pair); err != nil {
		return nil, err
	}
	if o.PairID == "" || len(o.PairID) > maxPairBytes {
		return nil, fmt.Errorf("%w: pair ID of %d bytes, must have 1 to %d", ErrInvalid, len(o.PairID), maxPairBytes)
	}
	o.RequestTimeout = cmp.Or(max(o.RequestTimeout, 0), DefaultRequestTimeout)
	o.LoadTTL = cmp.Or(max(o.LoadTTL, 0), DefaultLoadTTL)
	o.Logger = cmp.Or(o.Logger, zap.NewNop())
	d := &Directory{
		opts: o, client: o.Client, log: o.Logger,
		prefix:    strings.TrimRight(cmp.Or(o.Prefix, DefaultPrefix), "/") + "/",
		assigning: make(chan struct{}, 1), loading: make(chan struct{}, 1), reconciling: make(chan struct{}, 1),
		changed: make(chan struct{}),
	}
	d.watch = d.newWatch()
	return d, nil
}

func (d *Directory) key(kind, name string) string { return d.prefix + kind + name }

// Kinds of keys.
const (
	keyFleet   = "fleet"
	keyCounter = "counter"
	dirPairs   = "pairs/"
	dirLoad    = "load/"
	dirQueues  = "queues/"
	dirGroups  = "groups/"
	dirRules   = "rules/"
	dirRebuilt = "rebuilt/"
	dirMoves   = "moves/"
	// dirForgotten contains the IDs of pairs that Forget has removed.
	dirForgotten = "forgotten/"
)

func acquire(ctx context.Context, s chan struct{}) error {
	select {
	case s <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// attempts is the maximum number of attempts of a change, while other changes interfere. The change fails earlier if
// three attempts have ended with ErrUnavailable.
const attempts = 100

// txn commits a transaction. An error wraps ErrUnavailable, and the outcome is then unknown.
func (d *Directory) txn(ctx context.Context, cmps []clientv3.Cmp, then ...clientv3.Op) (*clientv3.TxnResponse, error) {
	limited, cancel := context.WithTimeout(ctx, d.opts.RequestTimeout)
	defer cancel()
	before := d.watch.Revision()
	resp, err := d.client.Txn(limited).If(cmps...).Then(then...).Commit()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	d.watch.Check(resp.Header, before)
	return resp, nil
}

func (d *Directory) get(ctx context.Context, key string, opts ...clientv3.OpOption) (*clientv3.GetResponse, error) {
	limited, cancel := context.WithTimeout(ctx, d.opts.RequestTimeout)
	defer cancel()
	before := d.watch.Revision()
	resp, err := d.client.Get(limited, key, opts...)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	d.watch.Check(resp.Header, before)
	return resp, nil
}

// retry calls try until it reports that the change is done, or returns a permanent error. If etcd does not respond,
// the outcome is unknown: try reads the current state and continues from there.
func (d *Directory) retry(ctx context.Context, try func() (done bool, err error)) error {
	failed := 0
	for range attempts {
		done, err := try()
		switch {
		case err == nil && done:
			return nil
		case ctx.Err() != nil:
			return errors.Join(err, ctx.Err())
		case errors.Is(err, ErrUnavailable):
			if failed++; failed == 3 {
				return err
			}
		case err != nil:
			return err
		}
	}
	return ErrContention
}

// head is the state of the directory that each change depends on.
type head struct {
	fleet   fleetValue
	counter uint64
	raw     string // value of the fleet; "": missing
	rawCtr  string // value of the counter; "": missing
}

// known is the state with which a response is compared. It is read before the request.
type known struct {
	PairState
	seen   uint64
	seenIn fleetValue
	// forgotten is set if the copy contains the removal of this pair.
	forgotten bool
}

func (d *Directory) known() known {
	k := known{PairState: d.opts.State()}
	d.mu.RLock()
	defer d.mu.RUnlock()
	k.seen, k.seenIn, k.forgotten = d.seen, d.seenIn, d.forgottenLocked()
	return k
}

// forgottenLocked reports whether the copy contains the removal of this pair.
func (d *Directory) forgottenLocked() bool {
	if d.copy == nil {
		return false
	}
	_, forgotten := d.copy.forgotten[d.opts.PairID]
	return forgotten
}

// maxEpoch returns the highest epoch of a fleet that this node has seen. If f has been rebuilt since, only the epochs
// in the log count, because a rebuild may discard epochs without queues.
func (k known) maxEpoch(f fleetValue) uint64 {
	if k.seenIn.ID == f.ID && k.seenIn.Rebuild >= f.Rebuild {
		return max(k.MaxEpoch, k.seen)
	}
	return k.MaxEpoch
}

func (d *Directory) headOps() []clientv3.Op {
	return []clientv3.Op{clientv3.OpGet(d.prefix + keyFleet), clientv3.OpGet(d.prefix + keyCounter)}
}

// decodeHead decodes the responses to headOps.
func (d *Directory) decodeHead(resp *clientv3.TxnResponse) (head, error) {
	var h head
	var err error
	if kvs := resp.Responses[0].GetResponseRange().Kvs; len(kvs) > 0 {
		h.raw = string(kvs[0].Value)
		if h.fleet, err = decodeFleet(kvs[0].Value); err != nil {
			return h, &ValueError{d.prefix + keyFleet, err}
		}
	}
	if kvs := resp.Responses[1].GetResponseRange().Kvs; len(kvs) > 0 {
		h.rawCtr = string(kvs[0].Value)
		if h.counter, err = decodeCounter(kvs[0].Value); err != nil {
			return h, &ValueError{d.prefix + keyCounter, err}
		}
	}
	return h, nil
}

// readHead reads the head and, at the same revision, other keys. The responses of ops begin at index 2.
func (d *Directory) readHead(ctx context.Context, ops ...clientv3.Op) (head, *clientv3.TxnResponse, error) {
	resp, err := d.txn(ctx, nil, slices.Concat(d.headOps(), ops)...)
	if err != nil {
		return head{}, nil, err
	}
	h, err := d.decodeHead(resp)
	return h, resp, err
}

// problem returns the reason why a directory must not be used for assignments, or nil.
func problem(h head, k known) error {
	switch {
	case k.forgotten:
		return ErrForgotten
	case k.FleetID == "":
		return ErrNotMember
	case h.raw == "":
		return fmt.Errorf("%w: no fleet", ErrLost)
	case h.fleet.ID != k.FleetID:
		return fmt.Errorf("%w: the directory belongs to fleet %s, this pair to fleet %s", ErrLost, h.fleet.ID, k.FleetID)
	case h.fleet.Rebuilding:
		return ErrRebuilding
	case h.counter < k.maxEpoch(h.fleet):
		return fmt.Errorf("%w: its last epoch is %d, the last known epoch %d", ErrRestored, h.counter,
			k.maxEpoch(h.fleet))
	case h.rawCtr == "":
		return fmt.Errorf("%w: no counter", ErrRestored)
	}
	return nil
}

// check returns the reason why the directory must not be used for assignments, or nil. If the directory was restored
// from an older copy and this node is the active, check also stops the assignments of all pairs.
func (d *Directory) check(ctx context.Context, h head, k known) error {
	err := problem(h, k)
	if err == nil {
		d.see(h)
		return nil
	}
	if errors.Is(err, ErrRestored) && k.Term != 0 {
		stopped := h.fleet
		stopped.Rebuilding, stopped.Rebuild = true, stopped.Rebuild+1
		resp, markErr := d.txn(ctx, d.sameFleet(h), clientv3.OpPut(d.prefix+keyFleet, encode(stopped)))
		if markErr != nil {
			return errors.Join(err, markErr)
		}
		if resp.Succeeded { // otherwise, the directory has changed since it was read
			d.log.Warn("stopped assignments: directory restored from an older copy", zap.Uint64("counter", h.counter))
		}
	}
	return err
}

// see records the counter of a directory.
func (d *Directory) see(h head) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.seeLocked(h)
}

func (d *Directory) seeLocked(h head) {
	if h.raw == "" {
		return
	}
	if d.seenIn.ID != h.fleet.ID || d.seenIn.Rebuild < h.fleet.Rebuild {
		if id := d.opts.State().FleetID; id != "" && id != h.fleet.ID {
			return // the directory of another fleet
		}
		d.seenIn, d.seen = h.fleet, 0
	}
	d.seen = max(d.seen, h.counter)
}

// sameFleet compares the fleet, and requires that this pair was not removed by Forget.
func (d *Directory) sameFleet(h head) []clientv3.Cmp {
	return []clientv3.Cmp{same(d.prefix+keyFleet, h.raw), same(d.key(dirForgotten, d.opts.PairID), "")}
}

func (d *Directory) sameHead(h head) []clientv3.Cmp {
	return append(d.sameFleet(h), same(d.prefix+keyCounter, h.rawCtr))
}

// same compares a key with a value; "" means missing.
func same(key, raw string) clientv3.Cmp {
	if raw == "" {
		return clientv3.Compare(clientv3.CreateRevision(key), "=", 0)
	}
	return clientv3.Compare(clientv3.Value(key), "=", raw)
}
