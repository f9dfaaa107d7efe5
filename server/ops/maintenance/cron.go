// SPDX-License-Identifier: Apache-2.0

package maintenance

import (
	"fmt"
	"strconv"
	"strings"

	cron "github.com/netresearch/go-cron"
)

// parseSchedule parses the cron expression of a job. If both day of month and weekday are restricted, a day that
// matches either of them matches, as usual in cron.
func parseSchedule(text string) (cron.Schedule, error) {
	const syntax = cron.Minute | cron.Hour | cron.Dom | cron.Month | cron.Dow | cron.Descriptor | cron.DowOrDom
	s, err := cron.MustNewParser(syntax).Parse(plainSteps(text))
	if err != nil {
		return nil, fmt.Errorf("%w: schedule %q: %w; must be minute, hour, day, month and weekday, such as \"30 2 "+
			"* * 0\", or @daily", ErrSetting, text, err)
	}
	return s, nil
}

// plainSteps rewrites two forms of steps that stored jobs may contain but the parser interprets differently. A step
// larger than its range, as in "*/60" and "10-12/5", becomes the first value of the range. The weekday "4/2" ends on
// Saturday (6), not on the Sunday written as 7.
func plainSteps(text string) string {
	fields := strings.Fields(text)
	zone := 0
	if len(fields) > 0 && strings.Contains(fields[0], "=") {
		zone = 1
	}
	lowest, highest := [...]int{0, 0, 1, 1, 0}, [...]int{59, 23, 31, 12, 6}
	if len(fields) != zone+len(lowest) {
		return text
	}
	for i := range lowest {
		parts := strings.Split(fields[zone+i], ",")
		for j, part := range parts {
			parts[j] = plainStep(part, lowest[i], highest[i])
		}
		fields[zone+i] = strings.Join(parts, ",")
	}
	return strings.Join(fields, " ")
}

func plainStep(part string, lowest, highest int) string {
	values, by, ok := strings.Cut(part, "/")
	step, err := strconv.Atoi(by)
	if !ok || err != nil || step < 1 {
		return part
	}
	first, last := lowest, highest
	all := values == "*" || values == "?"
	if !all {
		from, to, isRange := strings.Cut(values, "-")
		if first, err = strconv.Atoi(from); err != nil {
			return part
		}
		if isRange {
			if last, err = strconv.Atoi(to); err != nil {
				return part
			}
		}
	}
	switch {
	case step > last-first && first <= last:
		return strconv.Itoa(first)
	case all || first > last:
		return part
	default:
		return fmt.Sprintf("%d-%d/%d", first, last, step)
	}
}
