// SPDX-License-Identifier: Apache-2.0

//go:build faultdisk

package node

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/lockstep-mq/lockstep/store/vfs"
	"github.com/lockstep-mq/lockstep/store/vfs/faultdisk"
)

// disk is a filesystem that a test breaks from outside, if the environment says how it is reached. No product is built
// with this.
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
	l, err := net.Listen("tcp", address) //nolint:noctx // loopback: done or refused at once
	if err != nil {
		return nil, fmt.Errorf("%s: %w", faultdisk.Variable, err)
	}
	server := &http.Server{Handler: d, ReadHeaderTimeout: time.Minute}
	go func() { _ = server.Serve(l) }() // until the process ends: a test looks after it to the last moment
	return d.FS(), nil
}

// bootID is the boot of the simulated machine whose disk it is, if a test says so; empty for what the kernel says.
func bootID() string { return os.Getenv(faultdisk.VariableBoot) }
