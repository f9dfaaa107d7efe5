// SPDX-License-Identifier: Apache-2.0

//go:build !unix

package bench

import "errors"

func freeze(int) error { return errors.New("this system cannot freeze a process") }

func thaw(int) error { return errors.New("this system cannot freeze a process") }
