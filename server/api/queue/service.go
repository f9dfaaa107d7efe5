// SPDX-License-Identifier: Apache-2.0

// Package queue implements lockstep.v1.QueueService. It publishes and consumes messages and manages queues while
// the node has a session (package session).
package queue

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/server/api/apierror"
	"github.com/lockstep-mq/lockstep/server/api/protoconv"
	"github.com/lockstep-mq/lockstep/server/auth/access"
	"github.com/lockstep-mq/lockstep/server/config"
	"github.com/lockstep-mq/lockstep/server/delivery/dispatch"
	"github.com/lockstep-mq/lockstep/server/delivery/session"
	"github.com/lockstep-mq/lockstep/server/observe/history"
	"github.com/lockstep-mq/lockstep/server/observe/tracing"
	"github.com/lockstep-mq/lockstep/store"
	"github.com/lockstep-mq/lockstep/store/query"
	"github.com/lockstep-mq/lockstep/store/txn"
)

// Service implements lockstep.v1.QueueService.
type Service struct {
	pb.UnimplementedQueueServiceServer

	serving  *session.Current
	store    *store.Store
	limits   atomic.Pointer[config.Limits]
	filters  filterCache
	browsing *browsing
	rules    *access.Rules
	tracing  *tracing.Tracer // nil without tracing
	history  *history.Recorder
	quotas   atomic.Pointer[quotas] // nil while there are no quotas
	fleet    directory              // nil without a fleet

	quotasMu sync.Mutex // held while quotas is changed
	createMu sync.Mutex // held while a queue with a quota is created

	runningMu sync.Mutex // guards running
	running   map[*caller]struct{}
	activity  activity
	large     chan struct{} // contains one element while a large request is executed
	searches  chan struct{} // contains one element for each search step in progress
	buffers   sync.Pool     // contains *[]byte to encode transactions; replication copies them before Submit returns
}

const maxPooledBytes = 1 << 20

// New creates the service. The caller must call RulesChanged after a change of the rules.
func New(serving *session.Current, s *store.Store, l config.Limits, rules *access.Rules) *Service {
	q := &Service{
		serving: serving, store: s, rules: rules, running: make(map[*caller]struct{}), large: make(chan struct{}, 1),
		searches: make(chan struct{}, maxSearches()),
	}
	q.browsing = newBrowsing(l.PendingBytes.Bytes())
	q.limits.Store(&l)
	q.buffers.New = func() any { return new([]byte) }
	return q
}

// SetTracer sets the tracer for publishes. It must be called before the service is used.
func (s *Service) SetTracer(t *tracing.Tracer) { s.tracing = t }

// SetLimits changes the limits. The new limits apply to later requests and streams.
func (s *Service) SetLimits(l config.Limits) { s.limits.Store(&l) }

func (s *Service) sessionWith(feature string) (*session.Session, error) {
	session, err := s.serving.Session()
	if err != nil {
		return nil, err
	}
	return session, s.serving.Require(session, feature)
}

func (s *Service) buffer() *[]byte {
	b, _ := s.buffers.Get().(*[]byte)
	*b = (*b)[:0]
	return b
}

func (s *Service) release(b *[]byte) {
	if cap(*b) <= maxPooledBytes {
		s.buffers.Put(b)
	}
}

// status converts an error to a gRPC status. If the node is not active, the status contains the address of the active
// node, if known.
func (s *Service) status(err error) error {
	return apierror.ToStatus(apierror.WithRedirect(err, s.serving.NotActive))
}

func now() int64 { return time.Now().UnixMilli() }

type origin struct {
	producer *txn.Producer // nil if the request has no producer
	// retry is set if an earlier attempt may be in the log but not applied. In that case, the outcome is decided when
	// this attempt is applied.
	retry bool
	prior *query.Prior // stored result; nil if the request was not executed before
	// queues are the names of the queues in the request. absent is the error for those that do not exist at this pair, if
	// the request is logged nevertheless.
	queues []string
	absent error
}

// identify returns the origin of a request. queues are the names of the queues in the request; empty names are ignored.
func (s *Service) identify(p *pb.Producer, queues ...string) (o origin, err error) {
	o.retry, o.queues = p.GetRetry(), queues
	if o.producer, err = protoconv.Producer(p); err != nil || o.producer == nil {
		return o, err
	}
	o.prior, err = query.Lookup(s.store, o.producer, o.retry, nil) // INV-10
	return o, err
}

// mustLog reports whether a request must be logged although err means that its queue or subscription does not exist at
// this pair. Only retries are logged. When such a request is applied, it is refused permanently, unless an earlier
// attempt was executed. mustLog also records err as absent, which can replace the error of the refusal.
func (o *origin) mustLog(err error) bool {
	if !o.retry || !isMissing(err) && !errors.Is(err, txn.ErrSubscriptionNotFound) {
		return false
	}
	o.absent = err
	return true
}

// commit encodes one operation and commits it. If the request was executed before, commit returns the stored
// result.
func (s *Service) commit(
	ctx context.Context, session *session.Session, o origin, operation func(*txn.Builder),
) (*txn.Result, error) {
	if o.prior != nil {
		if err := s.checkSame(o.producer, o.prior, operation); err != nil {
			return nil, err
		}
		return s.resultOf(&o, &o.prior.Result)
	}
	buf := s.buffer()
	defer s.release(buf)
	var b txn.Builder
	b.Begin(*buf, now(), o.producer)
	operation(&b)
	payload, err := b.Finish()
	*buf = payload
	if err != nil {
		return nil, fmt.Errorf("encode the request: %w", err)
	}
	result, err := session.Primary.Commit(ctx, payload)
	if err != nil {
		return nil, err
	}
	return s.resultOf(&o, result)
}

// resultOf returns a stored or new result. It returns an error if the request was refused, or if the result cannot
// belong to a request with one operation.
func (s *Service) resultOf(o *origin, r *txn.Result) (*txn.Result, error) {
	err := s.refusal(r, o.producer != nil, o.absent, o.queues...)
	if err == nil && len(r.Ops) != 1 {
		err = errOtherTransaction(&pb.Producer{Id: string(o.producer.ID), Sequence: o.producer.Sequence})
	}
	return r, err
}

func (s *Service) find(name string) (id uint64, err error) {
	found, err := s.lookup(name, "")
	return found.QueueID, err
}

// findSub resolves the names of a queue and a subscription. An empty subscription name means "default". If an error
// is returned, the IDs are invalid.
func (s *Service) findSub(name, sub string) (id uint64, subID uint32, err error) {
	found, err := s.lookup(name, subscriptionName(sub))
	if err == nil && found.SubID == txn.NoSub {
		err = txn.ErrSubscriptionNotFound
	}
	return found.QueueID, found.SubID, err
}

// withSubscription adds the name of a subscription to an error that reports that the subscription was not found.
func withSubscription(err error, sub string) error {
	if errors.Is(err, txn.ErrSubscriptionNotFound) {
		return fmt.Errorf("%w: %q", err, subscriptionName(sub))
	}
	return err
}

func (s *Service) lookup(name, sub string) (query.Target, error) {
	names := [1]query.Target{{Queue: name, Subscription: sub}}
	if err := txn.CheckQueueName(name); err != nil {
		return names[0], err
	}
	_, missing, err := s.resolve(nil, false, names[:])
	if err == nil {
		err = missing
	}
	return names[0], err
}

// describeCreated returns the description of the queue with the given name and ID. If the queue was deleted in
// the meantime, the description contains only the name and the ID.
func (s *Service) describeCreated(session *session.Session, name string, id uint64) *pb.Queue {
	described, err := s.describe(session, name)
	if err != nil || described.GetId() != id {
		return &pb.Queue{Name: name, Id: id}
	}
	return described
}

func (s *Service) describe(session *session.Session, name string) (*pb.Queue, error) {
	if err := txn.CheckQueueName(name); err != nil {
		return nil, err
	}
	info, err := query.QueueByName(s.store, name)
	_, _, fenced := query.Fence(s.store, name)
	if errors.Is(err, store.ErrNoQueue) || err == nil && fenced {
		if err = s.missingOf(name); err == nil {
			err = txn.ErrQueueNotFound
		}
		return nil, named(err, name)
	}
	if err != nil {
		return nil, err
	}
	return queueToProto(&info, session), nil
}

func queueToProto(q *query.QueueInfo, session *session.Session) *pb.Queue {
	return protoconv.QueueToProto(q, func(sub uint32, out *pb.Subscription) {
		key := dispatch.Key{Queue: q.ID, Sub: sub}
		out.InFlight, out.Consumers = session.Consumers.Stats(key)
		out.OldestInFlightAge = optionalDuration(session.Consumers.OldestInFlight(key))
		if q.Config.Exclusive == 0 {
			return
		}
		if from, since, ok := session.Consumers.First(key); ok {
			out.ActiveConsumer = &pb.ActiveConsumer{Address: from, Since: timestamppb.New(since)}
		}
	})
}

// optionalDuration converts a duration. It returns nil for 0.
func optionalDuration(d time.Duration) *durationpb.Duration {
	if d == 0 {
		return nil
	}
	return durationpb.New(d)
}
