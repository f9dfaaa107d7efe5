// SPDX-License-Identifier: Apache-2.0

//go:build faultdisk

package node

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/lockstep-mq/lockstep/store/vfs"
	"github.com/lockstep-mq/lockstep/test/vfs/faultdisk"
)

// disk returns a filesystem with fault injection if an environment variable contains its control address.
// Released binaries are built without the tag faultdisk.
func disk() (vfs.FS, error) {
	address := os.Getenv(faultdisk.Variable)
	if address == "" {
		return vfs.OS(), nil
	}
	d := faultdisk.New(vfs.OS())
	if text := os.Getenv(faultdisk.VariableState); text != "" {
		var s faultdisk.State
		if err := json.Unmarshal([]byte(text), &s); err != nil {
			return nil, fmt.Errorf("%s: %w", faultdisk.VariableState, err)
		}
		if err := d.Set(s); err != nil {
			return nil, err
		}
	}
	l, err := net.Listen("tcp", address) //nolint:noctx // loopback: returns immediately
	if err != nil {
		return nil, fmt.Errorf("%s: %w", faultdisk.Variable, err)
	}
	server := &http.Server{Handler: d, ReadHeaderTimeout: time.Minute}
	go func() { _ = server.Serve(l) }() // runs until the process exits, so that a test can observe the disk until then
	return d.FS(), nil
}

// bootID returns the boot ID of the simulated machine that a test has set. If it is empty, the boot ID of the
// kernel is used.
func bootID() string { return os.Getenv(faultdisk.VariableBoot) }

// moveStep returns the default of Environment.MoveStep: a function that stops moves of queues before the steps that a
// test selects, or nil.
func moveStep() func(ctx context.Context, step string) error { return faultdisk.MoveStep() }
