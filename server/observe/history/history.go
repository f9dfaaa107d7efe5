// SPDX-License-Identifier: Apache-2.0

// Package history records, in memory only, the rates, depth and message age of the pair and of its most active queues
// over the last 24 hours.
package history

import (
	"cmp"
	"context"
	"maps"
	"math"
	"slices"
	"strconv"
	"sync"
	"time"
)

const (
	// MaxQueues is the maximum number of recorded queues. If there are more queues, those with the most traffic are
	// recorded.
	MaxQueues = 100
	// maxOthers is the maximum number of other queues that are observed but not recorded. Such a queue may replace a
	// recorded queue with less traffic.
	maxOthers = 100_000
	// ageLimit limits the time that one sample spends on reading the oldest messages.
	ageLimit = 250 * time.Millisecond
	// early is the maximum time by which a sample may precede the end of its interval.
	early = time.Second
	// averaging is the number of intervals over which traffic is averaged.
	averaging = 30
	// A queue replaces a recorded queue if it has more than minRatio times as much traffic.
	minRatio = 2
)

// Totals contains counters and current values of the whole pair.
type Totals struct{ Published, Delivered, Acknowledged, Messages, Bytes uint64 }

// Queue contains the current values of a queue.
type Queue struct{ ID, NextSequence, Messages, Bytes uint64 }

// Source provides the current values of an active node.
type Source interface {
	Totals() (Totals, error)
	// Queues calls yield for each queue.
	Queues(yield func(Queue))
	// Delivered returns the numbers of delivered messages, by queue ID. current contains the deliveries to attached
	// consumers since they attached. detached contains the deliveries to consumers that have detached since the last
	// call.
	Delivered() (current, detached map[uint64]uint64)
	// Oldest returns the sequence of the oldest message of a queue. ok is false if the queue is empty.
	Oldest(queue uint64) (sequence uint64, ok bool)
	// AcceptedAt returns the time at which a message was accepted. ok is false if the time is unknown.
	AcceptedAt(ctx context.Context, queue, sequence uint64) (at time.Time, ok bool)
}

// Recorder contains the history. It is safe for concurrent use.
type Recorder struct {
	mu     sync.Mutex // guards the fields below
	pair   *series
	queues map[uint64]*series

	sampling sync.Mutex // held during a sample; guards the fields below
	source   Source     // source of the last sample
	sampled  time.Time
	totals   Totals
	// others contains the progress of the queues that are not recorded. It is nil while all queues are recorded.
	others map[uint64]otherQueue
	turn   uint32 // number of the last sample
}

type otherQueue struct {
	progress uint32 // see Queue.progress
	turn     uint32 // number of the last sample that included this queue
}

// series contains the history of one queue. Recorder.mu guards the rings and traffic, and Recorder.sampling
// guards the other fields.
type series struct {
	recent, day ring
	traffic     float64 // average number of messages published and removed in an interval

	compared  bool   // last and delivered are from the previous sample of the same source
	last      Queue  // values of the last sample
	delivered uint64 // number of messages delivered, as in the last sample
	turn      uint32 // number of the last sample that included this queue

	oldest   uint64 // sequence of the oldest message; 0 if it was not read
	accepted time.Time
}

func newSeries() *series { return &series{recent: newRing(recentChunks), day: newRing(dayChunks)} }

// New returns an empty recorder.
func New() *Recorder { return &Recorder{pair: newSeries(), queues: make(map[uint64]*series)} }

// Empty reports whether nothing was recorded.
func (r *Recorder) Empty() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.pair.recent.newest == 0
}

// Point contains the values of one interval. NaN means unknown.
type Point struct {
	At                                 time.Time // end of the interval
	Published, Delivered, Acknowledged float64   // per second
	Messages, Bytes                    float64
	OldestAge                          float64 // in seconds, 0 without messages; for the pair, of the recorded queues
}

// Points returns the points of a queue in the period of length since that ends at now, oldest first, and their
// interval. The interval is Interval if the period is at most Recent, and DayInterval otherwise. Queue 0 is the
// pair. Intervals without values are omitted.
func (r *Recorder) Points(queue uint64, since time.Duration, now time.Time) (interval time.Duration, points []Point) {
	interval = Interval
	if since > Recent {
		interval = DayInterval
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.pair
	if queue != 0 {
		s = r.queues[queue]
	}
	if s == nil {
		return interval, nil
	}
	from := &s.recent
	if interval == DayInterval {
		from = &s.day
	}
	end := func(t time.Time) int64 { return t.UnixNano() / int64(interval) }
	first := end(now) - int64(min(since, Day)/interval) + 1
	for slot := first; slot <= end(now.Add(early)); slot++ {
		v := from.get(slot)
		if !v.known() {
			continue
		}
		points = append(points, Point{
			At:        time.Unix(0, slot*int64(interval)),
			Published: wide(v[published]), Delivered: wide(v[delivered]), Acknowledged: wide(v[acknowledged]),
			Messages: wide(v[messages]), Bytes: wide(v[size]), OldestAge: wide(v[age]),
		})
	}
	return interval, points
}

// wide converts f to the shortest decimal number that identifies it, such as 33.3 instead of 33.29999924.
func wide(f float32) float64 {
	if f == float32(math.Trunc(float64(f))) || isNaN(f) {
		return float64(f)
	}
	out, _ := strconv.ParseFloat(strconv.FormatFloat(float64(f), 'g', -1, 32), 64)
	return out
}

// Range contains the values of consecutive intervals.
type Range struct {
	First  int64     // end of the first interval, as a number of intervals since the Unix epoch
	Values []float32 // six per interval, in the order of the fields of Point after At
}

// Copied is a part of the history of one queue, to be sent to the other node.
type Copied struct {
	Queue       uint64 // 0 for the pair
	Traffic     float64
	Recent, Day Range
}

// Copy returns the points of the pair and of all recorded queues that end at since or later. since is rounded down
// to an interval. If since is zero, Copy returns all points.
func (r *Recorder) Copy(since time.Time) []Copied {
	recent, day := int64(0), int64(0)
	if !since.IsZero() {
		recent, day = since.UnixNano()/int64(Interval), since.UnixNano()/int64(DayInterval)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	out := make([]Copied, 0, len(r.queues)+1)
	add := func(id uint64, s *series) {
		out = append(out, Copied{
			Queue: id, Traffic: s.traffic, Recent: s.recent.copyFrom(recent), Day: s.day.copyFrom(day),
		})
	}
	add(0, r.pair)
	for id, s := range r.queues {
		add(id, s)
	}
	return out
}

// Paste adds a copy of the other node's history. It discards queues that the copy does not contain, and ignores
// invalid ranges. It returns the end of the newest interval in the copy, which can be passed to the next call of
// Copy. If the copy has no points, it returns the zero time.
func (r *Recorder) Paste(all []Copied) (newest time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	kept := make(map[uint64]*series, len(all))
	for _, c := range all {
		s := r.pair
		if c.Queue != 0 {
			if len(kept) == MaxQueues {
				continue
			}
			if s = r.queues[c.Queue]; s == nil {
				s = newSeries()
			}
			kept[c.Queue] = s
		} else if n := len(c.Recent.Values) / valueCount; n > 0 {
			newest = time.Unix(0, (c.Recent.First+int64(n)-1)*int64(Interval))
		}
		s.traffic = c.Traffic
		s.recent.paste(c.Recent)
		s.day.paste(c.Day)
	}
	r.queues = kept
	return newest
}

// progress returns a counter, modulo 2^32, that increases by 1 for each message published to the queue and for each
// message removed from it.
func (q *Queue) progress() uint32 { return uint32(2*q.NextSequence - q.Messages) }

// created returns the initial values of a new queue.
func created(id uint64) Queue { return Queue{ID: id, NextSequence: 1} }

// candidate is a queue that is not recorded.
type candidate struct {
	Queue

	created bool    // the queue was created since the last sample
	traffic float64 // in the last interval
}

// Sample records the values of the interval that ends nearest to now. The first sample of a source has no rates. If
// record is false, the sample is not recorded and only serves as the baseline for the rates of the next sample.
func (r *Recorder) Sample(ctx context.Context, source Source, now time.Time, record bool) error {
	r.sampling.Lock()
	defer r.sampling.Unlock()
	totals, err := source.Totals()
	if err != nil {
		return err
	}
	same, seconds := r.source == source, now.Sub(r.sampled).Seconds()
	same = same && seconds > 0
	current, detached := source.Delivered()
	recorded, candidates := r.find(source, same)
	recorded = r.choose(recorded, candidates)

	ctx, cancel := context.WithTimeout(ctx, ageLimit)
	defer cancel()
	oldest := time.Time{}
	slot := slotAt(now)
	for _, q := range recorded {
		v := unknown()
		if handed := current[q.ID] + detached[q.ID]; same && q.series.compared {
			v.compare(q.series, &q.Queue, handed, seconds)
		}
		v[messages], v[size] = float32(q.Messages), float32(q.Bytes)
		at, known := q.series.readOldest(ctx, source, q.ID)
		if v[age] = ageOf(at, known, now); known && !at.IsZero() && (oldest.IsZero() || at.Before(oldest)) {
			oldest = at
		}
		q.series.compared, q.series.last, q.series.delivered = true, q.Queue, current[q.ID]
		if record {
			r.write(q.series, slot, v)
		}
	}
	v := unknown()
	if same {
		v[published] = rate(totals.Published, r.totals.Published, seconds)
		v[delivered] = rate(totals.Delivered, r.totals.Delivered, seconds)
		v[acknowledged] = rate(totals.Acknowledged, r.totals.Acknowledged, seconds)
	}
	v[messages], v[size], v[age] = float32(totals.Messages), float32(totals.Bytes), ageOf(oldest, true, now)
	if record {
		r.write(r.pair, slot, v)
	}
	r.source, r.sampled, r.totals = source, now, totals
	return nil
}

func rate(now, before uint64, seconds float64) float32 {
	if now < before {
		return 0
	}
	return float32(float64(now-before) / seconds)
}

func ageOf(accepted time.Time, known bool, now time.Time) float32 {
	switch {
	case !known:
		return float32(math.NaN())
	case accepted.IsZero():
		return 0
	}
	return float32(max(now.Sub(accepted), 0).Seconds())
}

func (v *values) compare(s *series, now *Queue, handed uint64, seconds float64) {
	v[published] = rate(now.NextSequence, s.last.NextSequence, seconds)
	v[delivered] = rate(handed, s.delivered, seconds)
	v[acknowledged] = rate(s.last.Messages+now.NextSequence-s.last.NextSequence, now.Messages, seconds)
}

// readOldest returns the time at which the oldest message of a queue was accepted, or the zero time for an empty
// queue. known is false if the time could not be read.
func (s *series) readOldest(ctx context.Context, source Source, id uint64) (at time.Time, known bool) {
	sequence, ok := source.Oldest(id)
	if !ok {
		return time.Time{}, true
	}
	if sequence == s.oldest {
		return s.accepted, true
	}
	if ctx.Err() != nil {
		return time.Time{}, false
	}
	if at, ok = source.AcceptedAt(ctx, id, sequence); !ok {
		return time.Time{}, false
	}
	s.oldest, s.accepted = sequence, at
	return at, true
}

// recordedQueue is a queue with its series.
type recordedQueue struct {
	Queue

	series *series
}

// find returns the recorded queues that still exist, and the candidates. It removes the history of queues that no
// longer exist. If same is false, the last sample is of another source, and is not used. The caller must hold sampling.
func (r *Recorder) find(source Source, same bool) (recorded []recordedQueue, candidates []candidate) {
	r.mu.Lock()
	known := maps.Clone(r.queues)
	r.mu.Unlock()
	if !same {
		for _, s := range known {
			s.compared = false
		}
		r.others = nil
	}
	r.turn++
	source.Queues(func(q Queue) {
		if s := known[q.ID]; s != nil {
			s.turn = r.turn
			recorded = append(recorded, recordedQueue{q, s})
			return
		}
		before, was := r.others[q.ID]
		c := candidate{Queue: q, created: same && !was && len(r.others) < maxOthers}
		if c.created {
			before.progress = new(created(q.ID)).progress()
		}
		if was || c.created {
			c.traffic = float64(q.progress() - before.progress)
		}
		if len(known)+len(candidates) < MaxQueues || c.traffic > 0 {
			candidates = append(candidates, c)
		}
		if len(known)+len(candidates) >= MaxQueues {
			r.observe(&q)
		}
	})
	maps.DeleteFunc(r.others, func(_ uint64, o otherQueue) bool { return o.turn != r.turn })
	r.mu.Lock()
	defer r.mu.Unlock()
	maps.DeleteFunc(r.queues, func(_ uint64, s *series) bool { return s.turn != r.turn })
	return recorded, candidates
}

func (r *Recorder) observe(q *Queue) {
	if r.others == nil {
		r.others = make(map[uint64]otherQueue)
	}
	if _, was := r.others[q.ID]; was || len(r.others) < maxOthers {
		r.others[q.ID] = otherQueue{q.progress(), r.turn}
	}
}

// choose updates the average traffic of the recorded queues. It adds candidates up to MaxQueues, and then replaces
// recorded queues with candidates that have more traffic (minRatio). It returns the queues that are recorded after
// that.
func (r *Recorder) choose(recorded []recordedQueue, candidates []candidate) []recordedQueue {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, q := range recorded {
		if s := q.series; s.compared {
			s.traffic += (float64(q.progress()-s.last.progress()) - s.traffic) / averaging
		}
	}
	slices.SortFunc(candidates, func(a, b candidate) int {
		return cmp.Or(cmp.Compare(b.traffic, a.traffic), cmp.Compare(a.ID, b.ID))
	})
	slices.SortFunc(recorded, func(a, b recordedQueue) int { // the queue to be replaced next comes first
		return cmp.Or(cmp.Compare(a.series.traffic, b.series.traffic), cmp.Compare(b.ID, a.ID))
	})
	replaced := 0
	var added []recordedQueue
	for _, c := range candidates {
		if len(r.queues) >= MaxQueues {
			if replaced == len(recorded) || c.traffic <= minRatio*recorded[replaced].series.traffic {
				break
			}
			q := &recorded[replaced].Queue
			delete(r.queues, q.ID)
			r.observe(q)
			replaced++
		}
		s := newSeries()
		s.traffic, s.turn, s.compared, s.last = c.traffic, r.turn, c.created, created(c.ID)
		r.queues[c.ID] = s
		delete(r.others, c.ID)
		added = append(added, recordedQueue{c.Queue, s})
	}
	return append(recorded[replaced:], added...)
}

// write sets the values of an interval. It also updates the values of the minute that contains the interval.
func (r *Recorder) write(s *series, slot int64, v values) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s.recent.set(slot, v)
	minute := (slot + slotsInMinute - 1) / slotsInMinute
	var sums [messages]float64
	var counts [messages]float64
	total := unknown()
	for slot := (minute-1)*slotsInMinute + 1; slot <= minute*slotsInMinute; slot++ {
		v := s.recent.get(slot)
		if !v.known() {
			continue
		}
		copy(total[messages:], v[messages:])
		for i := range sums {
			if !isNaN(v[i]) {
				sums[i] += float64(v[i])
				counts[i]++
			}
		}
	}
	for i, n := range counts {
		if n > 0 {
			total[i] = float32(sums[i] / n)
		}
	}
	s.day.set(minute, total)
}
