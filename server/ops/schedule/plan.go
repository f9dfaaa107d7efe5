// SPDX-License-Identifier: Apache-2.0

// Package schedule computes the occurrences of schedules. A schedule is a cron expression in a time zone, or a
// fixed interval.
package schedule

import (
	"errors"
	"fmt"
	"strings"
	"time"
	_ "time/tzdata" // for machines and containers without a time zone database

	cron "github.com/netresearch/go-cron"
)

const (
	// MinEvery is the minimum interval of a plan.
	MinEvery = time.Second
	// MaxEvery is the maximum interval of a plan.
	MaxEvery = 10 * 366 * 24 * time.Hour
	// MissedAfter is the age above which an unpublished occurrence counts as missed.
	MissedAfter = time.Minute
)

// ErrInvalid is returned for an invalid cron expression, interval or time zone.
var ErrInvalid = errors.New("invalid schedule")

// Plan computes the occurrences of a schedule.
type Plan struct {
	every  time.Duration // 0: cron
	anchor time.Time     // start of the first interval
	cron   cron.Schedule // matches wall-clock times of zone, represented as times in UTC
	zone   *time.Location
	fixed  bool // the hour field does not begin with *, and the expression is not @hourly
}

// Every returns a plan with a fixed interval. The first occurrence is one interval after anchor. Every returns
// ErrInvalid for an interval below MinEvery or above MaxEvery.
func Every(interval time.Duration, anchor time.Time) (*Plan, error) {
	if interval < MinEvery || interval > MaxEvery {
		return nil, fmt.Errorf("%w: interval %s must be 1s to 87840h", ErrInvalid, interval)
	}
	return &Plan{every: interval, anchor: anchor}, nil
}

// Cron returns a plan for a cron expression in an IANA time zone; an empty zone is UTC. The expression has five
// fields, or is a descriptor such as @hourly, @daily, @weekly, @monthly or @yearly. If both day of month and day of
// week are restricted, a day that matches either of them matches.
//
// If the hour field begins with *, or the expression is @hourly, there is an occurrence each time the clock of the
// zone matches. A skipped hour then has no occurrences, and a repeated hour has its occurrences twice. With other
// expressions, each matching time occurs once. In a repeated hour, that is the first time. If the clock skips the
// time, the occurrence is immediately after the skipped period.
//
// Cron returns ErrInvalid for an invalid expression or an unknown time zone.
func Cron(expression, zone string) (*Plan, error) {
	fields := strings.Fields(expression)
	if len(fields) == 0 || strings.Contains(fields[0], "=") || strings.HasPrefix(fields[0], "@every") {
		return nil, fmt.Errorf("%w: cron expression %q", ErrInvalid, expression)
	}
	location, err := time.LoadLocation(zone)
	if err != nil || strings.EqualFold(zone, "local") {
		return nil, fmt.Errorf("%w: unknown time zone %q; must be an IANA name such as Europe/Berlin", ErrInvalid, zone)
	}
	p := &Plan{zone: location}
	if len(fields) == 5 {
		p.fixed = !strings.HasPrefix(fields[1], "*")
	} else {
		p.fixed = fields[0] != "@hourly"
	}
	const syntax = cron.Minute | cron.Hour | cron.Dom | cron.Month | cron.Dow | cron.Descriptor | cron.DowOrDom
	p.cron, err = cron.MustNewParser(syntax).Parse("TZ=UTC " + strings.Join(fields, " "))
	if err != nil {
		return nil, fmt.Errorf("%w: cron expression %q: %w; must be minute, hour, day, month and weekday, such as "+
			"\"30 2 * * 0\", or @daily", ErrInvalid, expression, err)
	}
	return p, nil
}

// Next returns the first occurrence after a time, in UTC. For a cron expression, it returns the zero time if no
// occurrence follows within five years.
func (p *Plan) Next(after time.Time) time.Time {
	switch {
	case p.every > 0 && after.Before(p.anchor):
		return p.anchor.Add(p.every).UTC()
	case p.every > 0:
		return p.anchor.Add(after.Sub(p.anchor).Truncate(p.every) + p.every).UTC()
	case !p.fixed:
		return p.nextMatch(after.In(p.zone))
	}
	for clock := onClock(after.In(p.zone)); ; {
		if clock = p.cron.Next(clock); clock.IsZero() {
			return time.Time{}
		}
		if at := fromClock(clock, p.zone); at.After(after) {
			return at.UTC()
		}
	}
}

// nextMatch returns the first time after t, in UTC, at which the clock of the zone matches.
func (p *Plan) nextMatch(t time.Time) time.Time {
	for clock := onClock(t); ; {
		next := p.cron.Next(clock)
		if next.IsZero() {
			return time.Time{}
		}
		_, offset := t.Zone()
		at := next.Add(-time.Duration(offset) * time.Second)
		_, end := t.ZoneBounds()
		if end.IsZero() || at.Before(end) {
			return at
		}
		t = end
		clock = onClock(t).Add(-time.Second) // include a match exactly at the change
	}
}

// onClock returns the wall time of t as a time in UTC.
func onClock(t time.Time) time.Time {
	return time.Date(t.Year(), t.Month(), t.Day(), t.Hour(), t.Minute(), t.Second(), t.Nanosecond(), time.UTC)
}

// fromClock returns the first time at which the clock of a zone shows a wall time, which is passed in UTC. If the clock
// skips the wall time, fromClock returns the end of the skipped time.
func fromClock(clock time.Time, zone *time.Location) time.Time {
	const day = 24 * time.Hour
	_, before := clock.Add(-day).In(zone).Zone()
	_, after := clock.Add(day).In(zone).Zone()
	at := clock.Add(-time.Duration(max(before, after)) * time.Second).In(zone) // the earlier of the two candidates
	if onClock(at).Equal(clock) {
		return at
	}
	at = clock.Add(-time.Duration(min(before, after)) * time.Second).In(zone)
	if onClock(at).Equal(clock) {
		return at
	}
	start, _ := at.ZoneBounds()
	return start
}

// Missed is the policy for missed occurrences.
type Missed int

// Policies for missed occurrences.
const (
	Skip Missed = iota + 1 // publish no missed occurrence
	Once                   // publish only the last missed occurrence
	All                    // publish each missed occurrence
)

// Step is the next step of a schedule.
type Step struct {
	// At is the occurrence to publish now; zero if none is due.
	At time.Time
	// Skipped is the number of missed occurrences to skip before At, from FirstSkipped to LastSkipped.
	Skipped                   uint64
	FirstSkipped, LastSkipped time.Time
	// Next is the time of the next occurrence if none is due or missed; otherwise, and if no occurrence follows, it is
	// zero.
	Next time.Time
}

// Step returns the next step of a schedule. last is the last occurrence that was published or skipped.
func (p *Plan) Step(last, now time.Time, missed Missed) (s Step) {
	next := p.Next(last)
	if next.IsZero() || next.After(now) {
		s.Next = next
		return s
	}
	cutoff := now.Add(-MissedAfter)
	if missed == All || !next.Before(cutoff) {
		s.At = next
		return s
	}
	first, latest, n := next, next, uint64(1)
	if p.every > 0 {
		n += uint64((cutoff.Sub(next) - 1) / p.every)
		latest = next.Add(time.Duration(n-1) * p.every)
	} else {
		for at := p.Next(latest); !at.IsZero() && at.Before(cutoff); at = p.Next(at) {
			s.LastSkipped, latest = latest, at
			n++
		}
	}
	s.FirstSkipped, s.Skipped = first, n
	if missed == Skip {
		s.LastSkipped = latest
		return s
	}
	s.At = latest
	if s.Skipped--; s.Skipped == 0 {
		s.FirstSkipped, s.LastSkipped = time.Time{}, time.Time{}
	} else if p.every > 0 {
		s.LastSkipped = latest.Add(-p.every)
	}
	return s
}
