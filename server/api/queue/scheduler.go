// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"go.uber.org/zap"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/server/delivery/session"
	"github.com/lockstep-mq/lockstep/server/ops/schedule"
	"github.com/lockstep-mq/lockstep/store/query"
	"github.com/lockstep-mq/lockstep/store/queue"
	"github.com/lockstep-mq/lockstep/store/txn"
)

const (
	commitRetryInterval = 200 * time.Millisecond // after an error of the node, not of the queue
	minScheduleBackoff  = time.Second            // after a refused publish
	maxScheduleBackoff  = time.Minute
	// maxScheduleWait limits the wait for the next occurrence.
	maxScheduleWait = 10 * time.Second
)

// Run publishes due occurrences while the node is active. It returns when ctx ends.
func (s *Schedules) Run(ctx context.Context) {
	changed, cancel := query.WatchMeta(s.q.store)
	defer cancel()
	for {
		role := s.q.serving.Changed()
		if session := s.q.serving.Get(); session != nil {
			(&scheduler{s: s, session: session, known: make(map[string]*scheduled)}).run(ctx, changed)
			s.setFailed(nil)
		}
		select {
		case <-role:
		case <-ctx.Done():
			return
		}
	}
}

func (s *Schedules) setFailed(failed []FailedSchedule) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failed = failed
}

// scheduler publishes the occurrences during one session. Its state is only a cache.
type scheduler struct {
	s       *Schedules
	session *session.Session
	known   map[string]*scheduled
}

type scheduled struct {
	storedSchedule

	retryAt time.Time // time of the next attempt after a failure
	backoff time.Duration
}

func (r *scheduler) run(ctx context.Context, changed <-chan struct{}) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for {
		names := r.refresh()
		var wake time.Time
		for _, name := range names {
			select {
			case <-r.session.Ended():
				return
			default:
			}
			if at := r.step(ctx, r.known[name]); !at.IsZero() && (wake.IsZero() || at.Before(wake)) {
				wake = at
			}
		}
		r.showFailed(names)
		wait := time.Hour
		if !wake.IsZero() {
			wait = min(maxScheduleWait, time.Until(wake))
		}
		timer := time.NewTimer(wait)
		select {
		case <-changed:
		case <-timer.C:
		case <-r.session.Ended():
		case <-ctx.Done():
		}
		timer.Stop()
		select {
		case <-r.session.Ended():
			return
		case <-ctx.Done():
			return
		default:
		}
	}
}

// refresh updates the known schedules from the store. It returns the sorted names of all schedules that can be
// decoded.
func (r *scheduler) refresh() (names []string) {
	entries := query.MetaPrefix(r.s.q.store, scheduleKeys)
	seen := make(map[string]bool, len(entries))
	for _, e := range entries {
		name := strings.TrimPrefix(e.Key, scheduleKeys)
		st, err := r.decode(name, e.Value)
		if err != nil {
			continue
		}
		seen[name] = true
		names = append(names, name)
		r.known[name].storedSchedule = st
	}
	for name := range r.known {
		if !seen[name] {
			delete(r.known, name)
		}
	}
	return names
}

// decode decodes a schedule. If the entry has not changed, it returns the known schedule. It adds a new schedule to
// the known schedules. If the times or the queue of a schedule have changed, it cancels a delayed retry.
func (r *scheduler) decode(name string, entry []byte) (storedSchedule, error) {
	known := r.known[name]
	if v, ok := queue.ParseVersioned(entry); ok && known != nil && known.version == v.Version {
		return known.storedSchedule, nil
	}
	st, err := decodeSchedule(entry)
	if err != nil {
		r.s.log.Warn("schedule cannot be decoded; it was written by another release", zap.String("schedule", name),
			zap.Error(err))
		return st, err
	}
	if known == nil {
		r.known[name] = new(scheduled)
	} else if !sameTimes(known.Schedule, st.Schedule) || known.GetQueue() != st.GetQueue() {
		known.retryAt, known.backoff = time.Time{}, 0
	}
	return st, nil
}

func (r *scheduler) showFailed(names []string) {
	var failed []FailedSchedule
	for _, name := range names {
		if text, is := r.known[name].failure(); is {
			failed = append(failed, FailedSchedule{Name: name, Error: text})
		}
	}
	r.s.setFailed(failed)
}

// failure returns the error of the last occurrence that was not skipped. failed is false if that occurrence did not
// fail or the schedule is paused.
func (st *storedSchedule) failure() (text string, failed bool) {
	i := lastAttempt(st.Schedule)
	if i < 0 {
		return "", false
	}
	run := st.GetHistory()[i]
	return run.GetError(), run.GetOutcome() == pb.ScheduleOutcome_SCHEDULE_OUTCOME_FAILED && !st.GetPaused()
}

// step publishes the next occurrence of a schedule if it is due. It returns the time of the next step, or zero if no
// step follows.
func (r *scheduler) step(ctx context.Context, e *scheduled) time.Time {
	now := time.Now()
	if e.GetPaused() {
		return time.Time{}
	}
	if now.Before(e.retryAt) {
		return e.retryAt
	}
	if next := e.plan.Next(e.last()); next.IsZero() || next.After(now) {
		return next
	}
	select {
	case r.s.changing <- struct{}{}:
		defer func() { <-r.s.changing }()
	case <-r.session.Ended():
		return time.Time{}
	case <-ctx.Done():
		return time.Time{}
	}
	if current, err := r.s.read(e.GetName()); err != nil || current.version != e.version {
		return now // a client has changed the schedule
	}
	err := r.publish(ctx, e, now)
	switch {
	case err == nil, errors.Is(err, txn.ErrMetaChanged): // ErrMetaChanged: a commit with an unknown outcome was applied
	default:
		r.s.log.Debug("occurrence of a schedule not committed; retrying", zap.String("schedule", e.GetName()), zap.Error(err))
		e.retryAt = now.Add(commitRetryInterval)
	}
	if e.retryAt.IsZero() {
		return now
	}
	return e.retryAt
}

// publish commits the next step of a due schedule. If the publish is refused, publish records the refusal instead.
func (r *scheduler) publish(ctx context.Context, e *scheduled, now time.Time) error {
	step := e.plan.Step(e.last(), now, missedRule(e.Schedule))
	next := proto.CloneOf(e.Schedule)
	if step.Skipped > 0 && pendingRun(next, step.FirstSkipped) >= 0 {
		// The queue has refused the occurrence. The history retains the reason, and the schedule remains failed.
		next.LastAt = timestamppb.New(step.FirstSkipped)
		e.retryAt, e.backoff = time.Time{}, 0
		return r.commit(ctx, e, func(b *txn.Builder) error { e.swap(b, next); return nil })
	}
	if step.Skipped > 0 {
		next.LastAt = timestamppb.New(step.LastSkipped)
		addRun(next, &pb.ScheduleRun{
			DueAt: timestamppb.New(step.FirstSkipped), At: timestamppb.New(now), Skipped: step.Skipped,
			Outcome: pb.ScheduleOutcome_SCHEDULE_OUTCOME_SKIPPED,
		})
	}
	if step.At.IsZero() {
		return r.commit(ctx, e, func(b *txn.Builder) error { e.swap(b, next); return nil })
	}
	published := proto.CloneOf(next)
	published.LastAt = timestamppb.New(step.At)
	addRun(published, &pb.ScheduleRun{
		DueAt: timestamppb.New(step.At), At: timestamppb.New(now), Outcome: pb.ScheduleOutcome_SCHEDULE_OUTCOME_PUBLISHED,
	})
	err := r.commit(ctx, e, func(b *txn.Builder) error { return r.s.encode(b, &e.storedSchedule, published, step.At) })
	refused, is := errors.AsType[*refusal](err)
	if !is || errors.Is(err, txn.ErrMetaChanged) {
		if err == nil {
			e.retryAt, e.backoff = time.Time{}, 0
			r.session.Consumers.Published(1, len(e.GetMessage().GetBody()))
		}
		return err
	}
	return r.fail(ctx, e, next, step.At, now, refused)
}

func missedRule(s *pb.Schedule) schedule.Missed {
	switch s.GetMissed() {
	case pb.MissedOccurrences_MISSED_OCCURRENCES_SKIP:
		return schedule.Skip
	case pb.MissedOccurrences_MISSED_OCCURRENCES_ALL:
		return schedule.All
	default:
		return schedule.Once
	}
}

// fail records a refused occurrence. The occurrence is retried until the next occurrence is due.
func (r *scheduler) fail(
	ctx context.Context, e *scheduled, next *pb.Schedule, due, now time.Time, cause error,
) error {
	text := cause.Error()
	text = strings.ToValidUTF8(text[:min(len(text), maxScheduleTextBytes)], "")
	following := e.plan.Next(due)
	final := !following.IsZero() && !following.After(now)
	if final {
		next.LastAt = timestamppb.New(due)
		e.retryAt, e.backoff = time.Time{}, 0
	} else {
		e.backoff = min(max(2*e.backoff, minScheduleBackoff), maxScheduleBackoff)
		e.retryAt = now.Add(e.backoff)
		if !following.IsZero() && following.Before(e.retryAt) {
			e.retryAt = following
		}
		if i := pendingRun(next, due); i >= 0 && next.GetHistory()[i].GetError() == text {
			return nil // an earlier attempt has recorded the failure
		}
	}
	addRun(next, &pb.ScheduleRun{
		DueAt: timestamppb.New(due), At: timestamppb.New(now), Error: text,
		Outcome: pb.ScheduleOutcome_SCHEDULE_OUTCOME_FAILED,
	})
	return r.commit(ctx, e, func(b *txn.Builder) error { e.swap(b, next); return nil })
}

// refusal is the reason why a transaction was refused.
type refusal struct{ error }

func (r *refusal) Unwrap() error { return r.error }

// commit commits a transaction and then reads the schedule again. If fill fails or the transaction is refused, the
// error is a *refusal. Other errors are errors of the node.
func (r *scheduler) commit(ctx context.Context, e *scheduled, fill operations) error {
	var b txn.Builder
	b.Begin(nil, now(), nil)
	if err := fill(&b); err != nil {
		return &refusal{err}
	}
	payload, err := b.Finish()
	if err != nil {
		return &refusal{err}
	}
	result, err := r.session.Primary.Commit(ctx, payload)
	if err != nil {
		return fmt.Errorf("commit: %w", err)
	}
	if err := result.Err(); err != nil {
		return &refusal{err}
	}
	if st, err := r.s.read(e.GetName()); err == nil && st.version != 0 {
		e.storedSchedule = st
	}
	return nil
}
