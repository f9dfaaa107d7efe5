// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package measure

import (
	"errors"
	"os"
)

func adviseDontNeed(*os.File) error { return nil }

func processorTime() (total, stolen float64) { return 0, 0 }

func limitMemory(int64) (leave func() error, err error) {
	return nil, errors.New("memory cgroups are supported on Linux only")
}
