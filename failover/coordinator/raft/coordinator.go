// SPDX-License-Identifier: Apache-2.0

package raft

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"go.uber.org/zap"

	"github.com/lockstep-mq/lockstep/failover"
	"github.com/lockstep-mq/lockstep/failover/coordinator/internal/dupdetect"
	"github.com/lockstep-mq/lockstep/failover/coordinator/internal/latest"
)

const renewPause = 100 * time.Millisecond

// Coordinator implements failover.Coordinator. It accesses the cluster through a local voter, and works while two of
// the three voters do, even if the local one has no vote.
type Coordinator struct {
	v    *Voter
	owns bool // Close also closes the voter
	log  *zap.Logger
	seen *latest.Value[failover.Observation]
	// duplicates is guarded by the lock of seen and only used within Update.
	duplicates dupdetect.Tracker

	began  time.Time
	seenAt atomic.Int64 // time of the leader's last message, in nanoseconds since began

	stopped chan struct{}
	once    sync.Once
	wg      sync.WaitGroup
}

var _ failover.Coordinator = (*Coordinator)(nil)

// Open starts a voter and connects to it; Close closes both. It does not wait for the other voters (see Ping). It fails
// only if the options are invalid, or the directory or the port is unusable.
func Open(o Options) (*Coordinator, error) {
	v, err := Start(o)
	if err != nil {
		return nil, err
	}
	c := v.Connect()
	c.owns = true
	return c, nil
}

// Connect returns a coordinator that uses this voter. The coordinator must be closed before the voter.
func (v *Voter) Connect() *Coordinator {
	c := &Coordinator{
		v: v, log: v.log, seen: latest.New(failover.Observation{}), stopped: make(chan struct{}),
		began: time.Now(),
	}
	c.wg.Go(c.follow)
	c.wg.Go(c.watchSilence)
	return c
}

// Voter returns the voter used by this coordinator.
func (c *Coordinator) Voter() *Voter { return c.v }

// Name implements failover.Coordinator.
func (c *Coordinator) Name() string { return "raft" }

// bound returns a context that Close also cancels.
func (c *Coordinator) bound(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	done := make(chan struct{})
	go func() {
		select {
		case <-c.stopped:
			cancel(errClosed)
		case <-done:
		}
	}()
	return ctx, sync.OnceFunc(func() { close(done); cancel(context.Canceled) })
}

var errClosed = errors.New("coordinator connection was closed")

// Ping waits until a majority of the voters responds, with or without a record.
func (c *Coordinator) Ping(ctx context.Context) error {
	_, _, err := c.Load(ctx)
	if !errors.Is(err, failover.ErrUnreachable) {
		return nil // an unusable record is also a response
	}
	if t := c.v.Status().Problem; t != "" {
		return fmt.Errorf("%w: %s", err, t)
	}
	return err
}

// Load implements failover.Coordinator.
func (c *Coordinator) Load(ctx context.Context) (failover.Record, failover.Revision, error) {
	got, err := c.load(ctx)
	if err != nil {
		return failover.Record{}, 0, fmt.Errorf("load cluster record: %w: %w", failover.ErrUnreachable, err)
	}
	if got.Record == nil {
		return failover.Record{}, 0, fmt.Errorf("voters at %s: %w", strings.Join(c.v.opts.Voters, ", "),
			failover.ErrNoRecord)
	}
	rec, err := failover.DecodeRecord(got.Record)
	if err != nil {
		return failover.Record{}, 0, fmt.Errorf("load cluster record: %w", err)
	}
	return rec, failover.Revision(got.Revision), nil
}

func (c *Coordinator) load(ctx context.Context) (state, error) {
	ctx, cancel := c.bound(ctx)
	defer cancel()
	var got state
	_, err := atLeader(ctx, c.v, c.v.opts.RequestTimeout, func(ctx context.Context, s service) (err error) {
		got, err = s.load(ctx)
		return err
	})
	return got, err
}

// Swap implements failover.Coordinator.
func (c *Coordinator) Swap(
	ctx context.Context, expect failover.Revision, next failover.Record,
) (failover.Revision, error) {
	value, err := next.Encode()
	if err != nil {
		return 0, fmt.Errorf("swap cluster record: %w", err)
	}
	ctx, cancel := c.bound(ctx)
	defer cancel()
	var rev int64
	// The same swap may be sent to several leaders. At most one entry can be applied; its OpID identifies it.
	outcomeUnknown, err := atLeader(ctx, c.v, c.v.opts.RequestTimeout, func(ctx context.Context, s service) (err error) {
		rev, err = s.swap(ctx, command{Expect: int64(expect), OpID: next.OpID, Record: value})
		return err
	})
	switch {
	case err == nil:
		return failover.Revision(rev), nil
	case !outcomeUnknown && errors.Is(err, failover.ErrConflict):
		return 0, fmt.Errorf("swap cluster record at revision %d: %w", expect, failover.ErrConflict)
	case !outcomeUnknown && errors.Is(err, failover.ErrRefused):
		return 0, fmt.Errorf("swap cluster record: %w", err)
	case final(err):
		// An earlier try may have been applied, and then overwritten.
		return 0, fmt.Errorf("swap cluster record at revision %d: %w", expect, failover.ErrUnknownOutcome)
	default:
		return 0, fmt.Errorf("swap cluster record: %w: %w", failover.ErrUnknownOutcome, err) // INV-8
	}
}

// WriteMark implements failover.Coordinator.
func (c *Coordinator) WriteMark(ctx context.Context, m failover.Mark) (before failover.Mark, err error) {
	ctx, cancel := c.bound(ctx)
	defer cancel()
	// The mark may be applied more than once: the highest mark is retained.
	_, err = atLeader(ctx, c.v, c.v.opts.RequestTimeout, func(ctx context.Context, s service) (err error) {
		before, err = s.mark(ctx, m)
		return err
	})
	if err != nil {
		return failover.Mark{}, fmt.Errorf("write high-water mark: %w", err)
	}
	return before, nil
}

// LoadMark implements failover.Coordinator.
func (c *Coordinator) LoadMark(ctx context.Context) (failover.Mark, error) {
	got, err := c.load(ctx)
	if err != nil {
		return failover.Mark{}, fmt.Errorf("load high-water mark: %w: %w", failover.ErrUnreachable, err)
	}
	return got.mark(), nil
}

// Watch implements failover.Coordinator.
func (c *Coordinator) Watch(ctx context.Context) <-chan failover.Observation {
	return c.seen.Watch(ctx)
}

func (c *Coordinator) follow() {
	ctx, cancel := c.bound(context.Background())
	defer cancel()
	for pause := retryDelayMin; ctx.Err() == nil; pause = min(2*pause, retryDelayMax) {
		s, address := c.v.findLeader(ctx)
		if s != nil {
			seen := c.seenAt.Load()
			err := c.watchAt(ctx, s, address)
			c.log.Debug("raft watch restarted", zap.Error(err))
			if c.seenAt.Load() != seen {
				pause = retryDelayMin
			}
		}
		limited, end := context.WithTimeout(ctx, pause)
		c.v.moved(limited, address)
		end()
	}
}

func (c *Coordinator) watchAt(ctx context.Context, s service, address string) error {
	limit := c.v.opts.RequestTimeout
	return once(ctx, c.v, 0, address, func(ctx context.Context) error {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		silent := time.AfterFunc(limit, cancel)
		defer silent.Stop()
		return s.watch(ctx, func(now watchMessage) {
			silent.Reset(limit)
			c.seenAt.Store(int64(time.Since(c.began)))
			c.observe(now)
		})
	})
}

// watchSilence reports the coordinator as unreachable when no message was received for RequestTimeout.
func (c *Coordinator) watchSilence() {
	limit := c.v.opts.RequestTimeout
	tick := time.NewTicker(limit / 4)
	defer tick.Stop()
	for {
		select {
		case <-c.stopped:
			return
		case <-tick.C:
			if time.Since(c.began)-time.Duration(c.seenAt.Load()) > limit {
				c.reportUnreachable()
			}
		}
	}
}

func (c *Coordinator) observe(now watchMessage) {
	back := false
	c.seen.Update(func(o *failover.Observation) bool {
		next := *o
		next.Reachable = true
		next.Problem, next.Conditions = c.v.Status().Problem, c.v.currentConditions()
		if !o.Reachable {
			back = true
		}
		if now.Record == nil {
			next.Record, next.Revision, next.RecordErr, next.Missing = nil, 0, nil, true
		} else if o.Record == nil || o.Revision != failover.Revision(now.Revision) {
			next.Missing, next.RecordErr = false, nil
			rec, err := failover.DecodeRecord(now.Record)
			if err != nil {
				next.RecordErr = fmt.Errorf("record in the raft log: %w", err)
			} else {
				next.Record, next.Revision = &rec, failover.Revision(now.Revision)
			}
		}
		switch {
		case now.Settled:
			next.Live, next.LiveKnown = now.Live, true
		default: // the leader is new: nodes that have not contacted it yet still count as live
			next.Live = merge(o.Live, now.Live)
		}
		if now.Settled || c.duplicates.Any(now.Processes) { // the duplicate process may not have contacted a new leader yet
			next.Duplicate = c.duplicates.See(now.LeaderEpoch, now.Processes)
		}
		news := differs(*o, next)
		*o = next
		return news
	})
	if back {
		c.log.Info("voters are reachable", zap.Strings("voters", c.v.opts.Voters))
	}
}

// merge returns the union of both lists. If both lists contain a node, the result contains the newer entry.
func merge(older, newer []failover.Live) []failover.Live {
	all := make(map[uuid.UUID]failover.Live)
	for _, l := range slices.Concat(older, newer) {
		all[l.Node.ID] = l
	}
	return sorted(slices.Collect(maps.Values(all)))
}

func differs(a, b failover.Observation) bool {
	return a.Reachable != b.Reachable || a.Problem != b.Problem || !slices.Equal(a.Conditions, b.Conditions) ||
		a.Revision != b.Revision || a.Missing != b.Missing ||
		(a.Record == nil) != (b.Record == nil) || (a.RecordErr == nil) != (b.RecordErr == nil) ||
		a.LiveKnown != b.LiveKnown ||
		!slices.Equal(a.Live, b.Live) || (a.Duplicate == nil) != (b.Duplicate == nil) ||
		a.Duplicate != nil && *a.Duplicate != *b.Duplicate
}

func (c *Coordinator) reportUnreachable() {
	problem, conditions := c.v.Status().Problem, c.v.currentConditions()
	was := false
	c.seen.Update(func(o *failover.Observation) bool {
		was = o.Reachable
		news := o.Reachable || o.Problem != problem || !slices.Equal(o.Conditions, conditions)
		o.Reachable, o.Problem, o.Conditions = false, problem, conditions
		return news
	})
	if was {
		c.log.Warn("majority of the voters is unreachable; role changes are suspended",
			zap.Strings("voters", c.v.opts.Voters),
			zap.String("cause", problem))
	}
}

// Announce implements failover.Coordinator.
func (c *Coordinator) Announce(ctx context.Context, live failover.Live) error {
	if strings.TrimSpace(live.Process) == "" {
		return errors.New("announce: process id is empty")
	}
	actx, cancel := c.bound(ctx)
	defer cancel()
	c.seen.Update(func(*failover.Observation) bool { c.duplicates.Begin(live); return false })
	defer c.seen.Update(func(o *failover.Observation) bool {
		c.duplicates.End()
		o.Duplicate = nil
		return true
	})
	for actx.Err() == nil {
		pause, from := c.v.opts.LeaseTTL/3, ""
		sent := time.Now()
		s, address := c.v.findLeader(actx)
		if s == nil {
			pause = renewPause
		} else {
			var ttl time.Duration
			err := once(actx, c.v, c.v.opts.RequestTimeout, address, func(ctx context.Context) (err error) {
				ttl, err = s.renew(ctx, live)
				return err
			})
			from = address
			if err != nil {
				pause = renewPause
				c.log.Debug("announce", zap.Error(err))
			} else {
				c.leased(sent.Add(ttl))
			}
		}
		limited, end := context.WithTimeout(actx, pause)
		c.v.moved(limited, from) // announce to a new leader immediately
		end()
	}
	select {
	case <-c.stopped:
		if ctx.Err() == nil {
			return fmt.Errorf("announce: %w", errClosed)
		}
		return nil
	default:
	}
	// Withdraw the announcement: the other node then does not have to wait until the lease expires.
	last, end := context.WithTimeout(context.WithoutCancel(ctx), c.v.opts.RequestTimeout/2)
	defer end()
	if _, err := atLeader(last, c.v, 0, func(ctx context.Context, s service) error {
		return s.withdraw(ctx, live)
	}); err != nil {
		c.log.Debug("announce: withdraw", zap.Error(err))
	}
	return nil
}

func (c *Coordinator) leased(until time.Time) {
	c.seen.Update(func(o *failover.Observation) bool {
		o.LeaseUntil = until
		return true
	})
}

// Close implements failover.Coordinator.
func (c *Coordinator) Close() error {
	c.once.Do(func() { close(c.stopped) })
	c.wg.Wait()
	if c.owns {
		return c.v.Close()
	}
	return nil
}
