// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package bench

import (
	"errors"
	"os"
)

// readUsage is only implemented on Linux.
func readUsage(int) Usage { return Usage{} }

func resetPeak(int) {}

func deviceWritten(string) float64 { return 0 }

func syncDisk(string) {}

func adviseDontNeed(*os.File) error { return nil }

func limitMemory(int64) (leave func() error, err error) {
	return nil, errors.New("only Linux has memory cgroups")
}
