// SPDX-License-Identifier: Apache-2.0

package schedule

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func at(t *testing.T, text string) time.Time {
	t.Helper()
	v, err := time.Parse(time.RFC3339, text)
	require.NoError(t, err)
	return v
}

// occurrences returns the occurrences after from, up to and including until, formatted in the given zone.
func occurrences(t *testing.T, p *Plan, zone, from, until string) (texts []string) {
	t.Helper()
	location, err := time.LoadLocation(zone)
	require.NoError(t, err)
	for next := p.Next(at(t, from)); !next.IsZero() && !next.After(at(t, until)); next = p.Next(next) {
		texts = append(texts, next.In(location).Format(time.RFC3339))
	}
	return texts
}

// An expression with a fixed hour has one occurrence on a day on which the clock changes. Other expressions
// follow the clock. In 2026, the clocks of Berlin skip 02:00 to 03:00 on March 29, and repeat 02:00 to 03:00 on
// October 25.
func TestDaylightSaving(t *testing.T) {
	const spring, springEnd = "2026-03-28T12:00:00Z", "2026-03-30T06:00:00Z"
	const autumn, autumnEnd = "2026-10-24T12:00:00Z", "2026-10-26T06:00:00Z"
	for _, c := range []struct {
		expression, zone, from, until string
		want                          []string
	}{
		{"0 2 * * *", "Europe/Berlin", spring, springEnd, []string{
			"2026-03-29T03:00:00+02:00", "2026-03-30T02:00:00+02:00",
		}},
		{"30 2 * * *", "Europe/Berlin", spring, springEnd, []string{
			"2026-03-29T03:00:00+02:00", "2026-03-30T02:30:00+02:00",
		}},
		{"0,30 2,3 * * *", "Europe/Berlin", spring, "2026-03-29T06:00:00Z", []string{
			"2026-03-29T03:00:00+02:00", "2026-03-29T03:30:00+02:00",
		}},
		{"30 2 * * *", "Europe/Berlin", autumn, autumnEnd, []string{
			"2026-10-25T02:30:00+02:00", "2026-10-26T02:30:00+01:00",
		}},
		// After the first of the repeated hours, the next occurrence is that of the next day.
		{"30 2 * * *", "Europe/Berlin", "2026-10-25T01:10:00Z", autumnEnd, []string{"2026-10-26T02:30:00+01:00"}},
		{"0 * * * *", "Europe/Berlin", "2026-03-29T00:30:00Z", "2026-03-29T02:00:00Z", []string{
			"2026-03-29T03:00:00+02:00", "2026-03-29T04:00:00+02:00",
		}},
		{"0 * * * *", "Europe/Berlin", "2026-10-24T23:30:00Z", "2026-10-25T02:00:00Z", []string{
			"2026-10-25T02:00:00+02:00", "2026-10-25T02:00:00+01:00", "2026-10-25T03:00:00+01:00",
		}},
		{"*/30 * * * *", "Europe/Berlin", "2026-10-24T23:59:00Z", "2026-10-25T01:30:00Z", []string{
			"2026-10-25T02:00:00+02:00", "2026-10-25T02:30:00+02:00", "2026-10-25T02:00:00+01:00",
			"2026-10-25T02:30:00+01:00",
		}},
		{"@hourly", "Europe/Berlin", "2026-03-29T00:30:00Z", "2026-03-29T01:00:00Z", []string{"2026-03-29T03:00:00+02:00"}},
		// Midnight is skipped in Cairo, and the clocks of Lord Howe change by half an hour.
		{"@daily", "Africa/Cairo", "2026-04-23T12:00:00Z", "2026-04-25T00:00:00Z", []string{
			"2026-04-24T01:00:00+03:00", "2026-04-25T00:00:00+03:00",
		}},
		{"15 2 * * *", "Australia/Lord_Howe", "2026-10-03T12:00:00Z", "2026-10-04T12:00:00Z", []string{
			"2026-10-04T02:30:00+11:00",
		}},
		{"0 12 29 2 *", "", "2026-01-01T00:00:00Z", "2030-01-01T00:00:00Z", []string{"2028-02-29T12:00:00Z"}},
		{"0 0 13 * FRI", "", "2026-11-11T00:00:00Z", "2026-11-20T00:00:00Z", []string{
			"2026-11-13T00:00:00Z", "2026-11-20T00:00:00Z",
		}},
		{"0 0 1-7 * *", "UTC", "2026-11-06T00:00:00Z", "2026-12-01T00:00:00Z", []string{
			"2026-11-07T00:00:00Z", "2026-12-01T00:00:00Z",
		}},
	} {
		p, err := Cron(c.expression, c.zone)
		require.NoError(t, err, c.expression)
		require.Equal(t, c.want, occurrences(t, p, c.zone, c.from, c.until), "%s in %s", c.expression, c.zone)
	}
}

// An expression with a wildcard hour has an occurrence exactly when the clock of its zone matches. This applies
// on days on which the clock changes: at 2 o'clock, at midnight, or by half an hour.
func TestWildcardHours(t *testing.T) {
	for zone, days := range map[string][]string{
		"Europe/Berlin": {"2026-03-28", "2026-10-24"}, "Africa/Cairo": {"2026-04-23", "2026-10-29"},
		"America/Havana": {"2026-03-07", "2026-10-31"}, "Australia/Lord_Howe": {"2026-04-04", "2026-10-03"},
		"UTC": {"2026-02-28"},
	} {
		location, err := time.LoadLocation(zone)
		require.NoError(t, err)
		for _, day := range days {
			from := at(t, day+"T00:00:00Z")
			for expression, matches := range map[string]func(clock time.Time) bool{
				"30 */2 * * *": func(c time.Time) bool { return c.Minute() == 30 && c.Hour()%2 == 0 },
				"15 * * * *":   func(c time.Time) bool { return c.Minute() == 15 },
				"0 */6 " + day[8:] + " * *": func(c time.Time) bool {
					return c.Minute() == 0 && c.Hour()%6 == 0 && c.Day() == from.Day()
				},
				"0 */8 " + from.AddDate(0, 0, 1).Format("2") + " * *": func(c time.Time) bool {
					return c.Minute() == 0 && c.Hour()%8 == 0 && c.Day() == from.AddDate(0, 0, 1).Day()
				},
			} {
				p, err := Cron(expression, zone)
				require.NoError(t, err)
				var want, got []time.Time
				end := from.Add(72 * time.Hour)
				for minute := from.Add(time.Minute); minute.Before(end); minute = minute.Add(time.Minute) {
					if matches(minute.In(location)) {
						want = append(want, minute)
					}
				}
				for next := p.Next(from); next.Before(end); next = p.Next(next) {
					got = append(got, next)
				}
				require.Equal(t, want, got, "%s in %s", expression, zone)
			}
		}
	}
}

// Invalid expressions, time zones and intervals are rejected. If a plan has no occurrence, Next returns the zero
// time.
func TestInvalidPlans(t *testing.T) {
	for _, expression := range []string{
		"", "* * * *", "* * * * * *", "60 * * * *", "@every 5s", "TZ=UTC 0 0 * * *", "CRON_TZ=UTC 0 0 * * *", "@reboot", "x",
	} {
		_, err := Cron(expression, "")
		require.ErrorIs(t, err, ErrInvalid, expression)
	}
	for _, zone := range []string{"Europe/Nowhere", "local", "Local", "../etc/passwd"} {
		_, err := Cron("@daily", zone)
		require.ErrorIs(t, err, ErrInvalid, zone)
	}
	for _, every := range []time.Duration{0, -time.Hour, 999 * time.Millisecond, MaxEvery + 1} {
		_, err := Every(every, time.Time{})
		require.ErrorIs(t, err, ErrInvalid, every)
	}
	p, err := Cron("0 0 30 2 *", "")
	require.NoError(t, err)
	require.True(t, p.Next(at(t, "2026-01-01T00:00:00Z")).IsZero(), "February 30")
}

// The occurrences of a plan with an interval are at multiples of the interval after its start.
func TestEvery(t *testing.T) {
	p, err := Every(90*time.Second, at(t, "2026-01-01T00:00:10Z"))
	require.NoError(t, err)
	require.Equal(t, []string{"2026-01-01T00:01:40Z", "2026-01-01T00:03:10Z"},
		occurrences(t, p, "", "2026-01-01T00:00:10Z", "2026-01-01T00:04:00Z"))
	require.Equal(t, []string{"2026-01-01T00:01:40Z"},
		occurrences(t, p, "", "2025-12-01T00:00:00Z", "2026-01-01T00:03:00Z"))
}

// Occurrences of the last minute are published individually under each policy. Earlier occurrences count as
// missed.
func TestMissedOccurrences(t *testing.T) {
	minutely, err := Cron("*/10 * * * *", "")
	require.NoError(t, err)
	every, err := Every(10*time.Minute, at(t, "2026-01-01T00:00:00Z"))
	require.NoError(t, err)
	time0 := func(text string) time.Time {
		if text == "" {
			return time.Time{}
		}
		return at(t, "2026-01-01T"+text+"Z")
	}
	for _, p := range []*Plan{minutely, every} {
		for _, c := range []struct {
			last, now      string
			rule           Missed
			at             string
			skipped        uint64
			first, through string
			next           string
		}{
			{last: "00:00:00", now: "00:09:59", rule: Once, next: "00:10:00"},
			{last: "00:00:00", now: "00:10:00", rule: Skip, at: "00:10:00"},
			{last: "00:00:00", now: "00:11:00", rule: Skip, at: "00:10:00"},
			{last: "00:00:00", now: "00:11:01", rule: Skip, skipped: 1, first: "00:10:00", through: "00:10:00"},
			{last: "00:00:00", now: "00:45:00", rule: Skip, skipped: 4, first: "00:10:00", through: "00:40:00"},
			{last: "00:00:00", now: "00:40:30", rule: Skip, skipped: 3, first: "00:10:00", through: "00:30:00"},
			{last: "00:00:00", now: "00:11:01", rule: Once, at: "00:10:00"},
			{last: "00:00:00", now: "00:45:00", rule: Once, at: "00:40:00", skipped: 3, first: "00:10:00", through: "00:30:00"},
			{last: "00:00:00", now: "00:45:00", rule: All, at: "00:10:00"},
			{last: "00:30:00", now: "00:45:00", rule: All, at: "00:40:00"},
		} {
			got := p.Step(time0(c.last), time0(c.now), c.rule)
			require.Equal(t, Step{
				At: time0(c.at), Skipped: c.skipped, FirstSkipped: time0(c.first), LastSkipped: time0(c.through),
				Next: time0(c.next),
			}, got, "%+v", c)
		}
	}
}
