// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/lockstep-mq/lockstep/failover"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/server/api/apierror"
	"github.com/lockstep-mq/lockstep/server/api/protoconv"
	"github.com/lockstep-mq/lockstep/server/auth/access"
	"github.com/lockstep-mq/lockstep/server/ops/schedule"
	"github.com/lockstep-mq/lockstep/store/query"
	"github.com/lockstep-mq/lockstep/store/queue"
	"github.com/lockstep-mq/lockstep/store/txn"
)

const (
	maxSchedules            = 500
	maxScheduleNameBytes    = 200
	maxScheduleMessageBytes = 32 << 10
	maxScheduleTextBytes    = 200 // for the cron expression, the time zone and an error
	maxScheduleHistory      = 20

	// scheduleKeys is the prefix of the keys of metadata entries with schedules. The value of an entry is a
	// pb.Schedule without next_at, written by txn.OpSwapMeta.
	scheduleKeys = "schedule/"
)

// Schedules implements lockstep.v1.ScheduleService. It also publishes due occurrences while the node is active.
type Schedules struct {
	pb.UnimplementedScheduleServiceServer

	q   *Service
	log *zap.Logger
	// changing contains one element while a schedule is changed. It only avoids conflicts.
	changing chan struct{}

	mu     sync.Mutex // guards failed
	failed []FailedSchedule
}

// FailedSchedule identifies a schedule for which the last occurrence failed.
type FailedSchedule struct{ Name, Error string }

// NewSchedules creates the service. The caller must call Run.
func NewSchedules(q *Service, logger *zap.Logger) *Schedules {
	return &Schedules{q: q, log: logger, changing: make(chan struct{}, 1)}
}

// Failed returns the schedules for which the last occurrence that was not skipped failed, ordered by name. It omits
// paused schedules. It returns nil if the node is not active.
func (s *Schedules) Failed() []FailedSchedule {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.failed
}

// storedSchedule is a stored schedule with the version of its entry.
type storedSchedule struct {
	*pb.Schedule

	version uint64 // 0 if the schedule does not exist
	plan    *schedule.Plan
}

func decodeSchedule(entry []byte) (st storedSchedule, err error) {
	v, ok := queue.ParseVersioned(entry)
	if !ok {
		return st, errors.New("entry without a version")
	}
	st = storedSchedule{Schedule: new(pb.Schedule), version: v.Version}
	if err := proto.Unmarshal(v.Value, st.Schedule); err != nil {
		return st, fmt.Errorf("decode: %w", err)
	}
	if h := st.GetHistory(); len(h) > 0 && h[0].GetOutcome() == pb.ScheduleOutcome_SCHEDULE_OUTCOME_PUBLISHED &&
		h[0].GetSequence() == 0 {
		h[0].Sequence = v.Sequence // the sequence was assigned when the transaction was applied
	}
	st.plan, err = planOf(st.Schedule)
	return st, err
}

func planOf(s *pb.Schedule) (*schedule.Plan, error) {
	if s.GetCron() != "" {
		return schedule.Cron(s.GetCron(), s.GetTimeZone())
	}
	return schedule.Every(s.GetEvery().AsDuration(), s.GetStartedAt().AsTime())
}

// read returns the applied schedule with a name. Its version is 0 if the schedule does not exist.
func (s *Schedules) read(name string) (st storedSchedule, err error) {
	entry, ok := query.Meta(s.q.store, scheduleKeys+name)
	if !ok {
		return st, nil
	}
	if st, err = decodeSchedule(entry); err != nil {
		err = fmt.Errorf("schedule %q cannot be decoded; it was written by another release: %w", name, err)
	}
	return st, err
}

// last returns the time after which the next occurrence is computed.
func (st *storedSchedule) last() time.Time {
	if st.GetLastAt() != nil {
		return st.GetLastAt().AsTime()
	}
	return st.GetStartedAt().AsTime()
}

// described returns the schedule for a response. It adds next_at, unless the schedule is paused or has no next
// occurrence.
func (st *storedSchedule) described() *pb.Schedule {
	s := proto.CloneOf(st.Schedule)
	if !s.GetPaused() {
		if next := st.plan.Next(st.last()); !next.IsZero() {
			s.NextAt = timestamppb.New(next)
		}
	}
	return s
}

// swap adds the operation that replaces the stored schedule with next to a transaction.
func (st *storedSchedule) swap(b *txn.Builder, next *pb.Schedule) {
	value, err := proto.Marshal(next)
	if err != nil {
		b.Fail(fmt.Errorf("encode the schedule: %w", err))
		return
	}
	b.SwapMeta(scheduleKeys+next.GetName(), st.version, value)
}

// addRun adds a run to the history. It replaces the run of an earlier failed attempt of the same occurrence. If the
// history is full, addRun removes the oldest run, but never the last attempt of an occurrence: manual runs must not
// hide its failure.
func addRun(s *pb.Schedule, r *pb.ScheduleRun) {
	if i := pendingRun(s, r.GetDueAt().AsTime()); i >= 0 && !r.GetManual() {
		s.History = slices.Delete(s.GetHistory(), i, i+1)
	}
	s.History = slices.Insert(s.GetHistory(), 0, r)
	for len(s.GetHistory()) > maxScheduleHistory {
		oldest := len(s.GetHistory()) - 1
		if oldest == lastAttempt(s) {
			oldest--
		}
		s.History = slices.Delete(s.GetHistory(), oldest, oldest+1)
	}
}

// lastAttempt returns the index in the history of the last occurrence that was not skipped, or -1.
func lastAttempt(s *pb.Schedule) int {
	return slices.IndexFunc(s.GetHistory(), func(r *pb.ScheduleRun) bool {
		return !r.GetManual() && r.GetOutcome() != pb.ScheduleOutcome_SCHEDULE_OUTCOME_SKIPPED
	})
}

// pendingRun returns the index in the history of the failed run of an occurrence, or -1.
func pendingRun(s *pb.Schedule, due time.Time) int {
	return slices.IndexFunc(s.GetHistory(), func(r *pb.ScheduleRun) bool {
		failed := !r.GetManual() && r.GetOutcome() == pb.ScheduleOutcome_SCHEDULE_OUTCOME_FAILED
		return failed && r.GetDueAt().AsTime().Equal(due)
	})
}

// PutSchedule creates or replaces a schedule.
func (s *Schedules) PutSchedule(ctx context.Context, req *pb.PutScheduleRequest) (*pb.PutScheduleResponse, error) {
	in := req.GetSchedule()
	if err := s.put(ctx, in, req.GetProducer()); err != nil {
		return nil, s.q.status(fmt.Errorf("put schedule %q: %w", in.GetName(), err))
	}
	st, err := s.read(in.GetName())
	if err != nil || st.version == 0 { // the schedule was deleted in the meantime
		return &pb.PutScheduleResponse{Schedule: in}, nil //nolint:nilerr // the schedule was put
	}
	return &pb.PutScheduleResponse{Schedule: st.described()}, nil
}

func (s *Schedules) put(ctx context.Context, in *pb.Schedule, producer *pb.Producer) error {
	if err := s.q.rules.Check(ctx, access.Manage, in.GetQueue()); err != nil {
		return err
	}
	if err := s.validate(in); err != nil {
		return err
	}
	if err := s.q.rules.Check(ctx, access.Publish, in.GetQueue()); err != nil {
		return err
	}
	by := access.FromContext(ctx).Principal
	if by == access.Anonymous {
		by = ""
	}
	_, err := s.change(ctx, producer, in.GetName(), in.GetQueue(), func(before storedSchedule) (operations, error) {
		if err := s.q.missingOf(in.GetQueue()); err != nil && replaces(err) {
			return nil, err
		}
		at := time.Now().Truncate(time.Millisecond)
		next := &pb.Schedule{
			Name: in.GetName(), Queue: in.GetQueue(), Cron: in.GetCron(), Every: in.GetEvery(), TimeZone: in.GetTimeZone(),
			Message: in.GetMessage(), Missed: in.GetMissed(), Paused: in.GetPaused(), PutBy: by,
			StartedAt: timestamppb.New(at),
		}
		if before.version == 0 {
			if len(query.MetaPrefix(s.q.store, scheduleKeys)) >= maxSchedules {
				return nil, fmt.Errorf("%w (maximum %d)", apierror.ErrTooManySchedules, maxSchedules)
			}
			return replaceWith(before, next), nil
		}
		if err := s.q.rules.Check(ctx, access.Manage, before.GetQueue()); err != nil {
			return nil, err
		}
		next.History = before.GetHistory()
		if sameTimes(before.Schedule, next) && before.GetPaused() == next.GetPaused() {
			next.StartedAt, next.LastAt = before.GetStartedAt(), before.GetLastAt()
		}
		next.PutBy = before.GetPutBy()
		if proto.Equal(before.Schedule, next) {
			return nil, nil // no change
		}
		next.PutBy = by
		return replaceWith(before, next), nil
	})
	return err
}

func replaceWith(before storedSchedule, next *pb.Schedule) operations {
	return func(b *txn.Builder) error {
		before.swap(b, next)
		return nil
	}
}

func sameTimes(a, b *pb.Schedule) bool {
	return a.GetCron() == b.GetCron() && a.GetTimeZone() == b.GetTimeZone() && proto.Equal(a.GetEvery(), b.GetEvery())
}

func (s *Schedules) validate(in *pb.Schedule) error {
	if err := errors.Join(checkScheduleName(in.GetName()), txn.CheckQueueName(in.GetQueue())); err != nil {
		return err
	}
	m := in.GetMessage()
	switch {
	case (in.GetCron() == "") == (in.Every == nil):
		return fmt.Errorf("%w: set either cron or every", apierror.ErrInvalid)
	case in.GetTimeZone() != "" && in.Every != nil:
		return fmt.Errorf("%w: an interval has no time zone", apierror.ErrInvalid)
	case len(in.GetCron()) > maxScheduleTextBytes || len(in.GetTimeZone()) > maxScheduleTextBytes:
		return fmt.Errorf("%w: cron expression or time zone of more than %d bytes", apierror.ErrInvalid, maxScheduleTextBytes)
	case in.GetMissed() < 0 || in.GetMissed() > pb.MissedOccurrences_MISSED_OCCURRENCES_ALL:
		return fmt.Errorf("%w: unknown rule %d for missed occurrences", apierror.ErrInvalid, in.GetMissed())
	case m.GetMessageId() != "" || m.GetExpiresAt() != nil || m.GetDeliverAt() != nil:
		return fmt.Errorf("%w: message of a schedule cannot have message_id, expires_at or deliver_at", apierror.ErrInvalid)
	case proto.Size(m) > maxScheduleMessageBytes:
		return fmt.Errorf("%w: message of %d bytes, maximum is %d", txn.ErrTooLarge, proto.Size(m), maxScheduleMessageBytes)
	}
	if _, err := planOf(in); err != nil {
		return apierror.Invalid(err)
	}
	var b txn.Builder
	b.Begin(nil, now(), nil)
	appendPublish(&b, 1, now(), 0, []*pb.Message{message(in, "")})
	if _, err := b.Finish(); err != nil {
		return fmt.Errorf("message: %w", err)
	}
	return nil
}

func checkScheduleName(name string) error {
	if len(name) > maxScheduleNameBytes {
		return fmt.Errorf("%w: name of a schedule has %d bytes, maximum is %d", txn.ErrInvalidName, len(name),
			maxScheduleNameBytes)
	}
	return txn.CheckName(name)
}

// message returns the message of an occurrence, with the given message ID.
func message(s *pb.Schedule, id string) *pb.Message {
	m := &pb.Message{}
	if s.GetMessage() != nil {
		m = proto.CloneOf(s.GetMessage())
	}
	m.MessageId = id
	return m
}

// operations adds operations to a transaction. It is nil if no change is needed.
type operations func(*txn.Builder) error

// scheduleChange returns the operations that change a schedule, or nil if no change is needed.
type scheduleChange func(before storedSchedule) (operations, error)

// change calls fn with the current state of a schedule and commits the operations that fn returns. If fn returns no
// operations, the result is nil. For a retry of an executed request, change returns the stored result and does not
// call fn. queue is the name of the queue in the request, or empty.
func (s *Schedules) change(
	ctx context.Context, producer *pb.Producer, name, queue string, fn scheduleChange,
) (*txn.Result, error) {
	if err := checkScheduleName(name); err != nil {
		return nil, err
	}
	session, err := s.q.sessionWith(failover.FeatureQueues)
	if err != nil {
		return nil, err
	}
	select {
	case s.changing <- struct{}{}:
		defer func() { <-s.changing }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	o, err := s.q.identify(producer, queue)
	if err != nil {
		return nil, err
	}
	if o.prior != nil {
		return &o.prior.Result, s.q.refusal(&o.prior.Result, true, nil, o.queues...)
	}
	before, err := s.read(name)
	if err != nil {
		return nil, err
	}
	fill, err := fn(before)
	if err != nil && replaces(err) && o.mustLog(err) {
		fill, err = func(b *txn.Builder) error { b.Purge(txn.NoQueue, 0); return nil }, nil // is refused
	}
	if err != nil || fill == nil {
		return nil, err
	}
	var b txn.Builder
	b.Begin(nil, now(), o.producer)
	if err := fill(&b); err != nil {
		return nil, err
	}
	payload, err := b.Finish()
	if err != nil {
		return nil, fmt.Errorf("encode the request: %w", err)
	}
	result, err := session.Primary.Commit(ctx, payload)
	if err != nil {
		return nil, err
	}
	return result, s.q.refusal(result, o.producer != nil, o.absent)
}

// changeFound is like change, but the schedule must exist. It requires the manage right on the schedule's queue.
func (s *Schedules) changeFound(
	ctx context.Context, producer *pb.Producer, name string,
	fn scheduleChange,
) (*txn.Result, error) {
	if err := s.q.rules.Check(ctx, access.Manage, ""); err != nil { // on at least one queue
		return nil, err
	}
	return s.change(ctx, producer, name, "", func(before storedSchedule) (operations, error) {
		if before.version == 0 {
			return nil, apierror.ErrNoSchedule
		}
		if err := s.q.rules.Check(ctx, access.Manage, before.GetQueue()); err != nil {
			return nil, err
		}
		return fn(before)
	})
}

// DeleteSchedule deletes a schedule.
func (s *Schedules) DeleteSchedule(
	ctx context.Context, req *pb.DeleteScheduleRequest,
) (*pb.DeleteScheduleResponse, error) {
	_, err := s.changeFound(ctx, req.GetProducer(), req.GetName(), func(storedSchedule) (operations, error) {
		return func(b *txn.Builder) error {
			b.DeleteMeta(scheduleKeys + req.GetName())
			return nil
		}, nil
	})
	if err != nil {
		return nil, s.q.status(fmt.Errorf("delete schedule %q: %w", req.GetName(), err))
	}
	return &pb.DeleteScheduleResponse{}, nil
}

// SetSchedulePaused pauses or resumes a schedule.
func (s *Schedules) SetSchedulePaused(
	ctx context.Context, req *pb.SetSchedulePausedRequest,
) (*pb.SetSchedulePausedResponse, error) {
	_, err := s.changeFound(ctx, req.GetProducer(), req.GetName(), func(before storedSchedule) (operations, error) {
		if before.GetPaused() == req.GetPaused() {
			return nil, nil // no change
		}
		next := proto.CloneOf(before.Schedule)
		next.Paused = req.GetPaused()
		if !next.GetPaused() { // occurrences during the pause do not count as missed
			next.LastAt = timestamppb.New(time.Now().Truncate(time.Millisecond))
		}
		return replaceWith(before, next), nil
	})
	if err != nil {
		return nil, s.q.status(fmt.Errorf("pause or resume schedule %q: %w", req.GetName(), err))
	}
	described, err := s.describe(req.GetName())
	if err != nil { // the schedule was changed and then deleted
		described = &pb.Schedule{Name: req.GetName(), Paused: req.GetPaused()}
	}
	return &pb.SetSchedulePausedResponse{Schedule: described}, nil
}

// RunSchedule publishes the message of a schedule immediately.
func (s *Schedules) RunSchedule(ctx context.Context, req *pb.RunScheduleRequest) (*pb.RunScheduleResponse, error) {
	resp, err := s.run(ctx, req)
	if err != nil {
		return nil, s.q.status(fmt.Errorf("run schedule %q: %w", req.GetName(), err))
	}
	return resp, nil
}

func (s *Schedules) run(ctx context.Context, req *pb.RunScheduleRequest) (*pb.RunScheduleResponse, error) {
	queue := ""
	result, err := s.changeFound(ctx, req.GetProducer(), req.GetName(), func(before storedSchedule) (operations, error) {
		queue = before.GetQueue()
		if err := s.q.rules.Check(ctx, access.Publish, queue); err != nil {
			return nil, err
		}
		at := time.Now().Truncate(time.Millisecond)
		next := proto.CloneOf(before.Schedule)
		addRun(next, &pb.ScheduleRun{
			DueAt: timestamppb.New(at), At: timestamppb.New(at), Manual: true,
			Outcome: pb.ScheduleOutcome_SCHEDULE_OUTCOME_PUBLISHED,
		})
		return func(b *txn.Builder) error { return s.encode(b, &before, next, at) }, nil
	})
	if err != nil {
		return nil, err
	}
	if len(result.Ops) != 2 {
		return nil, errOtherTransaction(req.GetProducer())
	}
	if queue == "" { // an earlier attempt has published the message
		st, err := s.read(req.GetName())
		if err == nil && s.q.rules.Check(ctx, access.Publish, st.GetQueue()) == nil {
			queue = st.GetQueue()
		}
	}
	return &pb.RunScheduleResponse{Queue: queue, Sequence: result.Ops[0].FirstSequence, Lsn: result.LSN}, nil
}

// encode checks the queue, the disk space and the quotas, and counts the message in the quotas. It then adds the
// publish of an occurrence and the next state of the schedule to a transaction. Both are applied, or neither
// (INV-24).
func (s *Schedules) encode(b *txn.Builder, st *storedSchedule, next *pb.Schedule, due time.Time) error {
	m := message(st.Schedule, st.GetName()+"@"+due.UTC().Format(time.RFC3339Nano))
	target := [1]query.Target{{Queue: st.GetQueue()}}
	_, missing, err := s.q.resolve(nil, false, target[:])
	if err != nil {
		return err
	}
	if missing != nil {
		return named(crossPair(missing), st.GetQueue()) // the schedule exists only at this pair
	}
	sizeBytes := messageOverheadBytes + len(m.GetBody()) + protoconv.AttributesBytes(m)
	if err := checkRoom(&target[0], 1, sizeBytes); err != nil {
		return err
	}
	if s.q.serving.DiskLow() {
		return apierror.ErrDiskLow
	}
	meters := s.q.quotas.Load().of(st.GetQueue())
	for _, quota := range meters {
		if err := quota.mayPublish(sizeBytes); err != nil {
			return err
		}
	}
	for _, quota := range meters {
		quota.published(1, sizeBytes)
	}
	appendPublish(b, target[0].QueueID, now(), int64(target[0].Config.Delay), []*pb.Message{m})
	s.q.appendForwards(b, target[0].QueueID, target[0].Forwards)
	st.swap(b, next)
	return nil
}

func (s *Schedules) describe(name string) (*pb.Schedule, error) {
	st, err := s.read(name)
	if err == nil && st.version == 0 {
		err = apierror.ErrNoSchedule
	}
	if err != nil {
		return nil, err
	}
	return st.described(), nil
}

// GetSchedule returns a schedule.
func (s *Schedules) GetSchedule(ctx context.Context, req *pb.GetScheduleRequest) (*pb.GetScheduleResponse, error) {
	err := s.q.rules.Check(ctx, access.QueueRights, "") // any right on at least one queue
	if err == nil {
		_, err = s.q.serving.Session()
	}
	var described *pb.Schedule
	if err == nil {
		described, err = s.describe(req.GetName())
	}
	if err == nil {
		err = s.q.maySee(ctx, described.GetQueue())
	}
	if err != nil {
		return nil, s.q.status(fmt.Errorf("schedule %q: %w", req.GetName(), err))
	}
	return &pb.GetScheduleResponse{Schedule: described}, nil
}

// ListSchedules returns the schedules for queues on which the caller has any right, ordered by name. The history of
// each schedule contains only the last run.
func (s *Schedules) ListSchedules(
	ctx context.Context, req *pb.ListSchedulesRequest,
) (*pb.ListSchedulesResponse, error) {
	if _, err := s.q.serving.Session(); err != nil {
		return nil, s.q.status(err)
	}
	resp := &pb.ListSchedulesResponse{}
	for _, e := range query.MetaPrefix(s.q.store, scheduleKeys+req.GetPrefix()) {
		st, err := decodeSchedule(e.Value)
		if err != nil || s.q.maySee(ctx, st.GetQueue()) != nil {
			continue
		}
		described := st.described()
		described.History = described.GetHistory()[:min(1, len(described.GetHistory()))]
		resp.Schedules = append(resp.Schedules, described)
	}
	return resp, nil
}
