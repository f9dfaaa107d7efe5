// SPDX-License-Identifier: Apache-2.0

//go:build unix

package cluster

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/lockstep-mq/lockstep/test/vfs/faultdisk"
)

const lockstep = "github.com/lockstep-mq/lockstep/cmd/lockstep"

// Build compiles cmd/lockstep of this module into dir, and returns the binary's path. LOCKSTEP_BINARY is the path of an
// existing binary to use instead, for example a race build or another version. The built binary supports disk faults
// (Options.Disk).
func Build(ctx context.Context, dir string) (string, error) {
	if binary := os.Getenv("LOCKSTEP_BINARY"); binary != "" {
		return filepath.Abs(binary)
	}
	return goBuild(ctx, filepath.Join(dir, "lockstep"), lockstep, "-tags", faultdisk.Tag)
}

// BuildWithClock is like Build, but a built binary also has an adjustable clock (Options.Clock). The first build
// compiles all packages, including the standard library.
func BuildWithClock(ctx context.Context, dir string) (string, error) {
	if os.Getenv("LOCKSTEP_BINARY") != "" {
		return Build(ctx, dir)
	}
	return buildWithClock(ctx, dir, "lockstep-clock", lockstep)
}

func buildWithClock(ctx context.Context, dir, name, command string) (string, error) {
	overlay, err := clockOverlay(ctx, dir)
	if err != nil {
		return "", err
	}
	return goBuild(ctx, filepath.Join(dir, name), command,
		"-tags", strings.Join([]string{faultdisk.Tag, clockTag}, ","), "-overlay", overlay)
}

// BuildEtcdWithClock compiles the program for Options.EtcdBinary, and returns its path.
func BuildEtcdWithClock(ctx context.Context, dir string) (string, error) {
	return buildWithClock(ctx, dir, "etcd-clock", "github.com/lockstep-mq/lockstep/test/cluster/etcd")
}

func goBuild(ctx context.Context, binary, command string, flags ...string) (string, error) {
	args := append(append([]string{"build"}, flags...), "-o", binary, command)
	if out, err := exec.CommandContext(ctx, "go", args...).CombinedOutput(); err != nil {
		return "", fmt.Errorf("build %s: %w\n%s", command, err, out)
	}
	return binary, nil
}
