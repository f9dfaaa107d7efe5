// SPDX-License-Identifier: Apache-2.0

// Package units puts sizes into words for people, as messages and reasons have them. Programs get them in bytes.
package units

import "fmt"

// Bytes gives a size with one decimal and the largest unit that leaves at least one before it, such as "1.1 MiB".
func Bytes[T ~int | ~int64 | ~uint64](n T) string {
	const units = "KMGTPE"
	if n < 1024 {
		return fmt.Sprintf("%d B", n)
	}
	v, i := float64(n)/1024, 0
	for v >= 1024 && i < len(units)-1 {
		v /= 1024
		i++
	}
	return fmt.Sprintf("%.1f %ciB", v, units[i])
}
