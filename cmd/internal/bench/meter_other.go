// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package bench

// readUsage is implemented for Linux only.
func readUsage(int) Usage { return Usage{} }

func resetPeak(int) {}

// DeviceWritten is implemented for Linux only.
func DeviceWritten(string) float64 { return 0 }

// SyncDisk is implemented for Linux only.
func SyncDisk(string) {}
