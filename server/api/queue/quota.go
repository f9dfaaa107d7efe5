// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/server/auth/access"
	"github.com/lockstep-mq/lockstep/store/query"
	"github.com/lockstep-mq/lockstep/store/txn"
)

const (
	quotaSampleInterval = 250 * time.Millisecond // interval of samples of the bytes in queues
	maxQuotaWait        = 10 * time.Second       // if earlier publishes cause a longer delay, a publish is refused
)

type quotas struct{ meters []*meter }

type meter struct {
	*pb.AccessQuota

	// held is the number of bytes in the queues at the last sample. added is the number of bytes published since
	// then.
	held, added *atomic.Int64

	bucket *bucket
}

// bucket is a token bucket of messages. tokens is negative while publishers must wait.
type bucket struct {
	mu     sync.Mutex
	tokens float64
	at     time.Time
}

// loadQuotas loads the quotas of the current rules. It preserves the measured usage of each queue pattern.
func (s *Service) loadQuotas() {
	s.quotasMu.Lock()
	defer s.quotasMu.Unlock()
	before := make(map[string]*meter)
	if old := s.quotas.Load(); old != nil {
		for _, m := range old.meters {
			before[m.GetQueue()] = m
		}
	}
	var next []*meter
	for _, q := range s.rules.Table().Quotas() {
		m := &meter{AccessQuota: q, held: new(atomic.Int64), added: new(atomic.Int64), bucket: new(bucket)}
		if old := before[q.GetQueue()]; old != nil {
			m.held, m.added, m.bucket = old.held, old.added, old.bucket
		}
		m.sample(s)
		next = append(next, m)
	}
	if next == nil {
		s.quotas.Store(nil)
		return
	}
	s.quotas.Store(&quotas{next})
}

func (q *quotas) of(name string) (meters []*meter) {
	if q == nil {
		return nil
	}
	for _, m := range q.meters {
		if txn.MatchQueue(m.GetQueue(), name) {
			meters = append(meters, m)
		}
	}
	return meters
}

// WatchQuotas periodically samples the bytes of the queues with quotas until ctx ends.
func (s *Service) WatchQuotas(ctx context.Context) {
	ticker := time.NewTicker(quotaSampleInterval)
	defer ticker.Stop()
	for {
		if now := s.quotas.Load(); now != nil && s.serving.Get() != nil {
			for _, m := range now.meters {
				m.sample(s)
			}
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
	}
}

func (m *meter) sample(s *Service) {
	if m.GetBytes() == 0 {
		return
	}
	m.added.Store(0) // bytes of concurrent publishes may count twice until the next sample
	_, bytes := m.usage(s)
	m.held.Store(int64(bytes))
}

func (m *meter) usage(s *Service) (queues, bytes uint64) {
	return query.Usage(s.store, txn.LiteralPrefix(m.GetQueue()), func(name string) bool {
		return txn.MatchQueue(m.GetQueue(), name)
	})
}

func (m *meter) exceeded(quota string, limit, used uint64, advice string) error {
	return &access.QuotaError{Quota: quota, Pattern: m.GetQueue(), Limit: limit, Used: used, Advice: advice}
}

func (m *meter) mayPublish(sizeBytes int) error {
	if limit := m.GetBytes(); limit > 0 {
		if used := uint64(m.held.Load() + m.added.Load()); used+uint64(sizeBytes) > limit {
			return m.exceeded("bytes", limit, used, "consume messages, or raise the quota")
		}
	}
	if rate := m.GetMessagesPerSecond(); rate > 0 {
		if wait := m.bucket.wait(time.Now(), float64(rate), 0); wait > maxQuotaWait {
			return m.exceeded("rate", rate, rate, fmt.Sprintf(
				"earlier publishes are %s ahead of the rate: publish more slowly, or raise the quota",
				wait.Round(time.Second)))
		}
	}
	return nil
}

func (m *meter) published(messages, sizeBytes int) time.Duration {
	m.added.Add(int64(sizeBytes))
	if rate := m.GetMessagesPerSecond(); rate > 0 {
		return m.bucket.wait(time.Now(), float64(rate), messages)
	}
	return 0
}

// wait consumes n tokens. It returns the time until the number of tokens is no longer negative. The bucket holds at
// most the tokens of one second.
func (b *bucket) wait(now time.Time, rate float64, n int) time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.at.IsZero() {
		b.tokens = rate
	} else {
		b.tokens = min(rate, b.tokens+rate*now.Sub(b.at).Seconds())
	}
	b.at = now
	b.tokens -= float64(n)
	if b.tokens >= 0 {
		return 0
	}
	return time.Duration(-b.tokens / rate * float64(time.Second))
}

func hold(ctx context.Context, wait time.Duration, ended <-chan struct{}) {
	if wait <= 0 {
		return
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ended:
	case <-ctx.Done():
	}
}

func (s *Service) mayCreate(name string) error {
	for _, m := range s.quotas.Load().of(name) {
		limit := m.GetQueues()
		if limit == 0 {
			continue
		}
		if used, _ := m.usage(s); used >= limit {
			return m.exceeded("queues", limit, used, "delete queues, or raise the quota")
		}
	}
	return nil
}

func (s *Service) checkConnections(name string) error {
	for _, m := range s.quotas.Load().of(name) {
		limit := m.GetConnections()
		if limit == 0 {
			continue
		}
		if used := s.connections(m.GetQueue()); used > limit { // the count includes the caller's stream
			return m.exceeded("connections", limit, used-1, "close connections, or raise the quota")
		}
	}
	return nil
}

func (s *Service) connections(pattern string) (n uint64) {
	for _, c := range s.callers() {
		if c.uses(pattern) {
			n++
		}
	}
	return n
}

// QuotaUse returns the current usage of the queues that match a pattern.
func (s *Service) QuotaUse(pattern string) *pb.AccessQuota {
	m := meter{AccessQuota: &pb.AccessQuota{Queue: pattern}}
	queues, bytes := m.usage(s)
	return &pb.AccessQuota{Queue: pattern, Queues: queues, Bytes: bytes, Connections: s.connections(pattern)}
}
