// SPDX-License-Identifier: Apache-2.0

//go:build !unix

package harness

import "errors"

// errNoPause is returned on systems that cannot pause a process.
var errNoPause = errors.New("pausing a process is not supported on this system")

// Pause returns an error: this system cannot pause a process.
func (p *process) Pause() error { return errNoPause }

// Wake returns an error: this system cannot pause a process.
func (p *process) Wake() error { return errNoPause }
