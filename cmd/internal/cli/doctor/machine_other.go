// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package doctor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"

	"github.com/lockstep-mq/lockstep/cmd/internal/output"
)

const onlyLinux = "available on Linux only"

func dataSync(f *os.File) error {
	if err := f.Sync(); err != nil {
		return fmt.Errorf("sync: %w", err)
	}
	return nil
}

func checkClock(context.Context, *inspector) []Finding      { return notChecked(onlyLinux) }
func checkFilesystem(context.Context, *inspector) []Finding { return notChecked(onlyLinux) }
func checkKernel(context.Context, *inspector) []Finding     { return notChecked(onlyLinux) }

func checkProcessors(context.Context, *inspector) []Finding {
	return one(OK, output.Plural(runtime.NumCPU(), "processor"), "", "")
}

func lockOwner(string) int                  { return 0 }
func portOwner(int) int                     { return 0 }
func nameOfProcess(int) string              { return "" }
func memoryLimits() (machine, group uint64) { return 0, 0 }
func openFiles() (uint64, error)            { return 0, errors.New(onlyLinux) }
