// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package bench

// readUsage is implemented for Linux only.
func readUsage(int) Usage { return Usage{} }

func resetPeak(int) {}

// deviceWritten is implemented for Linux only.
func deviceWritten(string) float64 { return 0 }
