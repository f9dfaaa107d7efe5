// SPDX-License-Identifier: Apache-2.0

package maintenance

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Stored schedules have the same meaning as in release 0.1.0.
func TestSchedules(t *testing.T) {
	from := time.Date(2026, time.March, 4, 10, 30, 0, 0, time.UTC) // a Wednesday
	for schedule, next := range map[string]string{
		"30 2 * * 0":                      "2026-03-08 02:30",
		"@daily":                          "2026-03-05 00:00",
		"@every 6h":                       "2026-03-04 16:30",
		"*/15 * * * *":                    "2026-03-04 10:45",
		"0 0 15 * FRI":                    "2026-03-06 00:00", // the 15th, or a Friday
		"0 0 * jan,feb mon-fri":           "2027-01-01 00:00",
		"*/60 * * * *":                    "2026-03-04 11:00", // the step is larger than the range
		"0 10-12/5 * * *":                 "2026-03-05 10:00",
		"0 0 * * 4/2":                     "2026-03-05 00:00",
		"0 0 8 * 4/1":                     "2026-03-05 00:00",
		"0 0 1 * 6/1":                     "2026-03-07 00:00", // Saturday, and not Sunday
		"0 0 * * */1":                     "2026-03-05 00:00",
		"TZ=Asia/Tokyo 0 3 * * *":         "2026-03-04 18:00",
		"CRON_TZ=Asia/Tokyo */60 3 * * *": "2026-03-04 18:00",
	} {
		s, err := parseSchedule(schedule)
		require.NoError(t, err, schedule)
		require.Equal(t, next, s.Next(from).UTC().Format("2006-01-02 15:04"), schedule)
	}
	for _, schedule := range []string{
		"", "@reboot", "* * * *", "60 * * * *", "a * * * *", "*/0 * * * *",
		"TZ=Nowhere 0 3 * * *",
	} {
		_, err := parseSchedule(schedule)
		require.ErrorIs(t, err, ErrSetting, schedule)
		require.Contains(t, err.Error(), `"30 2 * * 0"`)
	}
}
