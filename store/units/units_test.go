// SPDX-License-Identifier: Apache-2.0

package units

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestBytes(t *testing.T) {
	for n, want := range map[int64]string{
		0: "0 B", 1023: "1023 B", 1024: "1.0 KiB", 1_114_112: "1.1 MiB", 5 << 30: "5.0 GiB", math.MaxInt64: "8.0 EiB",
		-3 << 20: "-3.0 MiB",
	} {
		require.Equal(t, want, Bytes(n))
	}
}

func TestCount(t *testing.T) {
	for n, want := range map[int64]string{
		0: "0", 999: "999", 1000: "1,000", 1_234_567: "1,234,567", -1000: "-1,000",
		math.MinInt64: "-9,223,372,036,854,775,808",
	} {
		require.Equal(t, want, Count(n))
	}
	require.Equal(t, "18,446,744,073,709,551,615", Count(uint64(math.MaxUint64)))
}

func TestRate(t *testing.T) {
	for n, want := range map[float64]string{0: "0", 0.25: "0.2", 1: "1", 9.94: "9.9", 9.96: "10", 12345.6: "12,346"} {
		require.Equal(t, want, Rate(n))
	}
}

func TestAge(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "0s", 250 * time.Millisecond: "250ms", 34*time.Second + 545*time.Millisecond: "34s", time.Minute: "1m",
		7*time.Minute + 39*time.Second: "7m39s", 2*time.Hour + 5*time.Minute + time.Second: "2h5m", 24 * time.Hour: "1d",
		76 * time.Hour: "3d4h", -time.Minute: "-1m",
	} {
		require.Equal(t, want, Age(d))
	}
}
