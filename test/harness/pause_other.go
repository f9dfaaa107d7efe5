// SPDX-License-Identifier: Apache-2.0

//go:build !unix

package harness

import "errors"

// errNoPause is returned on systems that cannot pause a process.
var errNoPause = errors.New("this system cannot pause a process")

// Pause is not supported on this system.
func (p *process) Pause() error { return errNoPause }

// Wake is not supported on this system.
func (p *process) Wake() error { return errNoPause }
