// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/lockstep-mq/lockstep/store/units"
)

// Size is a number of bytes. It is written with a unit, such as "64MiB", "512KiB" or "1GB" (units without the i
// are powers of ten), or as a plain number.
type Size int64

type sizeUnit struct {
	suffix string
	bytes  int64
}

// sizeUnits returns the units. If several suffixes match a text, the longest precedes the others.
func sizeUnits() []sizeUnit {
	return []sizeUnit{
		{"kib", 1 << 10},
		{"mib", 1 << 20},
		{"gib", 1 << 30},
		{"tib", 1 << 40},
		{"kb", 1e3},
		{"mb", 1e6},
		{"gb", 1e9},
		{"tb", 1e12},
		{"b", 1},
	}
}

// ParseSize parses a non-negative integer with an optional unit, such as "64MiB".
func ParseSize(text string) (Size, error) {
	number, factor := strings.TrimSpace(text), int64(1)
	lower := strings.ToLower(number)
	for _, u := range sizeUnits() {
		if strings.HasSuffix(lower, u.suffix) {
			number, factor = strings.TrimSpace(number[:len(number)-len(u.suffix)]), u.bytes
			break
		}
	}
	n, err := strconv.ParseInt(number, 10, 64)
	if err != nil || n < 0 {
		return 0, fmt.Errorf("%q is not a size; use an integer and a unit, such as 64MiB or 512KiB", text)
	}
	if n > math.MaxInt64/factor {
		return 0, fmt.Errorf("size %q is too large", text)
	}
	return Size(n * factor), nil
}

func (s Size) String() string {
	for _, u := range []sizeUnit{{"TiB", 1 << 40}, {"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}} {
		if int64(s) >= u.bytes && int64(s)%u.bytes == 0 {
			return strconv.FormatInt(int64(s)/u.bytes, 10) + u.suffix
		}
	}
	return strconv.FormatInt(int64(s), 10)
}

// Bytes returns the number of bytes.
func (s Size) Bytes() int64 { return int64(s) }

// Duration is a length of time, written with a unit, such as "600ms", "5s", "1m30s" or "7d".
type Duration time.Duration

// ParseDuration parses a duration that is not negative. It returns an error for a number without a unit, except 0.
func ParseDuration(text string) (Duration, error) {
	d, err := time.ParseDuration(units.ExpandDays(strings.TrimSpace(text)))
	if err != nil || d < 0 {
		return 0, fmt.Errorf("%q is not a duration; use a number and a unit, such as 600ms, 5s, 1m or 7d", text)
	}
	return Duration(d), nil
}

func (d Duration) String() string { return time.Duration(d).String() }

// Std returns the duration as a time.Duration.
func (d Duration) Std() time.Duration { return time.Duration(d) }

// Percent is a percentage, written as "20%" or 20.
type Percent int

// ParsePercent parses an integer from 0 to 100.
func ParsePercent(text string) (Percent, error) {
	n, err := strconv.Atoi(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(text), "%")))
	if err != nil || n < 0 || n > 100 {
		return 0, fmt.Errorf("%q is not a percentage; use an integer from 0%% to 100%%, such as 20%%", text)
	}
	return Percent(n), nil
}

func (p Percent) String() string { return strconv.Itoa(int(p)) + "%" }

// Ratio is a fraction, written as 0.01 or 1.
type Ratio float64

// ParseRatio parses a number from 0 to 1.
func ParseRatio(text string) (Ratio, error) {
	r, err := strconv.ParseFloat(strings.TrimSpace(text), 64)
	if err != nil || !(r >= 0 && r <= 1) { // the negated condition also rejects NaN
		return 0, fmt.Errorf("%q is not a ratio; use a number from 0 to 1, such as 0.01", text)
	}
	return Ratio(r), nil
}

func (r Ratio) String() string { return strconv.FormatFloat(float64(r), 'g', -1, 64) }

// Within returns the limits, capped at fractions of the memory budget. A transaction of the maximum size is always
// permitted.
func (l Limits) Within(budgetBytes int64) Limits {
	l.PendingBytes = min(l.PendingBytes, max(Size(budgetBytes/2), l.TransactionBytes+transactionSlackBytes))
	l.StreamInFlightBytes = min(l.StreamInFlightBytes, max(Size(budgetBytes/8), 1<<20))
	l.Connections = min(l.Connections, max(int(budgetBytes/connectionBytes), minConnections))
	return l
}

const (
	connectionBytes = 64 << 10
	minConnections  = 256
)

// transactionSlackBytes is the maximum overhead that is counted for a queued transaction, in addition to its
// messages.
const transactionSlackBytes = 1 << 20
