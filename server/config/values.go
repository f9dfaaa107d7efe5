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

// Size is a number of bytes. Written as "64MiB", "512KiB", "1GB" (powers of ten without the i) or a plain number of
// bytes.
type Size int64

// sizeUnits is ordered so that the longest suffix is tried first.
func sizeUnits() []struct {
	suffix string
	bytes  int64
} {
	return []struct {
		suffix string
		bytes  int64
	}{
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

// ParseSize reads a size such as "64MiB". Sizes are whole numbers of their unit and never negative.
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
		return 0, fmt.Errorf("%q is not a size; write a whole number and a unit, such as 64MiB or 512KiB", text)
	}
	if n > math.MaxInt64/factor {
		return 0, fmt.Errorf("size %q is too large to be counted in bytes", text)
	}
	return Size(n * factor), nil
}

// String gives the shortest exact form.
func (s Size) String() string {
	for _, u := range []struct {
		suffix string
		bytes  Size
	}{{"TiB", 1 << 40}, {"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}} {
		if s >= u.bytes && s%u.bytes == 0 {
			return strconv.FormatInt(int64(s/u.bytes), 10) + u.suffix
		}
	}
	return strconv.FormatInt(int64(s), 10)
}

// Bytes gives the size as a number.
func (s Size) Bytes() int64 { return int64(s) }

// Duration is a time with a unit, written as "600ms", "5s", "1m30s" or "7d".
type Duration time.Duration

// ParseDuration reads a duration. A number without a unit is refused: it does not say whether it means seconds.
func ParseDuration(text string) (Duration, error) {
	d, err := time.ParseDuration(units.ExpandDays(strings.TrimSpace(text)))
	if err != nil || d < 0 {
		return 0, fmt.Errorf("%q is not a duration; write a number and a unit, such as 600ms, 5s, 1m or 7d", text)
	}
	return Duration(d), nil
}

// String gives the form that ParseDuration reads.
func (d Duration) String() string { return time.Duration(d).String() }

// Std gives the duration as the standard library's type.
func (d Duration) Std() time.Duration { return time.Duration(d) }

// Percent is a share, written as "20%" or 20.
type Percent int

// ParsePercent reads a whole number of percent from 0 to 100.
func ParsePercent(text string) (Percent, error) {
	n, err := strconv.Atoi(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(text), "%")))
	if err != nil || n < 0 || n > 100 {
		return 0, fmt.Errorf("%q is not a share; write a whole number from 0%% to 100%%, such as 20%%", text)
	}
	return Percent(n), nil
}

// String gives the form that ParsePercent reads.
func (p Percent) String() string { return strconv.Itoa(int(p)) + "%" }

// Ratio is a share, written as 0.01 or 1.
type Ratio float64

// ParseRatio reads a number from 0 to 1.
func ParseRatio(text string) (Ratio, error) {
	r, err := strconv.ParseFloat(strings.TrimSpace(text), 64)
	if err != nil || !(r >= 0 && r <= 1) { // not a number is neither
		return 0, fmt.Errorf("%q is not a ratio; write a number from 0 to 1, such as 0.01", text)
	}
	return Ratio(r), nil
}

// String gives the form that ParseRatio reads.
func (r Ratio) String() string { return strconv.FormatFloat(float64(r), 'g', -1, 64) }

// Within bounds what is under way by the memory that there is. With the default budget the default limits are
// below that. One transaction, however large, is always possible.
func (l Limits) Within(budgetBytes int64) Limits {
	l.PendingBytes = min(l.PendingBytes, max(Size(budgetBytes/2), l.TransactionBytes+transactionSlackBytes))
	l.StreamInFlightBytes = min(l.StreamInFlightBytes, max(Size(budgetBytes/8), 1<<20))
	l.Connections = min(l.Connections, max(int(budgetBytes/connectionBytes), minConnections))
	return l
}

const (
	// connectionBytes is about what a connection costs that has no calls under way.
	connectionBytes = 64 << 10
	minConnections  = 256
)

// transactionSlackBytes is what a waiting transaction counts besides its messages, at most.
const transactionSlackBytes = 1 << 20
