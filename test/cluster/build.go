//go:build unix

package cluster

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/lockstep-mq/lockstep/store/vfs/faultdisk"
)

// Build compiles cmd/lockstep of this module into dir and returns the binary's path. LOCKSTEP_BINARY names a binary to
// use instead, so that a race build or another version can be put through the same tests. What is built can have its
// disks broken (Options.Disk); without that it behaves as any other.
func Build(ctx context.Context, dir string) (string, error) {
	if binary := os.Getenv("LOCKSTEP_BINARY"); binary != "" {
		return filepath.Abs(binary)
	}
	binary := filepath.Join(dir, "lockstep")
	cmd := exec.CommandContext(ctx, "go", "build", "-tags", faultdisk.Tag, "-o", binary,
		"github.com/lockstep-mq/lockstep/cmd/lockstep")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build cmd/lockstep: %w\n%s", err, out)
	}
	return binary, nil
}
