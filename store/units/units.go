// SPDX-License-Identifier: Apache-2.0

// Package units formats counts, sizes, rates and ages as readable text, and converts days in durations.
package units

import (
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// Count formats a number with separators, such as "1,234,567".
func Count[T ~int | ~int32 | ~int64 | ~uint32 | ~uint64](n T) string {
	s, sign := "", ""
	if n < 0 {
		s, sign = strconv.FormatInt(int64(n), 10)[1:], "-"
	} else {
		s = strconv.FormatUint(uint64(n), 10)
	}
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return sign + s
}

// Bytes formats a size in the largest unit for which the number is at least 1, with one decimal, such as "1.1 MiB".
// Sizes below 1 KiB have no decimal, such as "512 B".
func Bytes[T ~int | ~int64 | ~uint32 | ~uint64](n T) string {
	const units = "KMGTPE"
	v, i := float64(n)/1024, 0
	if math.Abs(v) < 1 {
		return fmt.Sprintf("%d B", n)
	}
	for math.Abs(v) >= 1024 && i < len(units)-1 {
		v /= 1024
		i++
	}
	return fmt.Sprintf("%.1f %ciB", v, units[i])
}

// Rate formats a number per second: below 10 with at most one decimal, otherwise as a whole number with separators.
func Rate(perSecond float64) string {
	if math.Abs(perSecond) < 9.95 {
		return strings.TrimSuffix(strconv.FormatFloat(perSecond, 'f', 1, 64), ".0")
	}
	return Count(int64(math.Round(perSecond)))
}

// Age formats a duration in its largest unit and the next smaller one, in the syntax of settings and flags: "34s",
// "7m39s", "3d4h". Positive durations of less than a second are in milliseconds: "250ms". The rest is truncated.
func Age(d time.Duration) string {
	if d < 0 {
		return "-" + Age(-d)
	}
	for _, u := range [...]struct {
		large, small         time.Duration
		nameLarge, nameSmall string
	}{
		{24 * time.Hour, time.Hour, "d", "h"},
		{time.Hour, time.Minute, "h", "m"},
		{time.Minute, time.Second, "m", "s"},
	} {
		if d < u.large {
			continue
		}
		text := strconv.FormatInt(int64(d/u.large), 10) + u.nameLarge
		if rest := d % u.large / u.small; rest > 0 {
			text += strconv.FormatInt(int64(rest), 10) + u.nameSmall
		}
		return text
	}
	if 0 < d && d < time.Second {
		return strconv.FormatInt(d.Milliseconds(), 10) + "ms"
	}
	return strconv.FormatInt(int64(d/time.Second), 10) + "s"
}

// ExpandDays converts the days of a duration to hours: "7d12h" becomes "168h12h". Other text is returned unchanged.
func ExpandDays(text string) string {
	return regexp.MustCompile(`[0-9]*\.?[0-9]+d`).ReplaceAllStringFunc(text, func(s string) string {
		n, err := strconv.ParseFloat(strings.TrimSuffix(s, "d"), 64)
		if err != nil {
			return s
		}
		return strconv.FormatFloat(n*24, 'f', -1, 64) + "h"
	})
}
