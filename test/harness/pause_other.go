// SPDX-License-Identifier: Apache-2.0

//go:build !unix

package harness

import "errors"

// errNoPause is returned where a process can only be ended.
var errNoPause = errors.New("this system cannot pause a process")

// Pause is not possible here.
func (p *process) Pause() error { return errNoPause }

// Wake is not possible here.
func (p *process) Wake() error { return errNoPause }
