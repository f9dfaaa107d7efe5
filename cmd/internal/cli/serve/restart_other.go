// SPDX-License-Identifier: Apache-2.0

//go:build !unix

package serve

import "errors"

const canRestart = false

func execAgain(string, string, string) error {
	return errors.New("restart is not supported on this system")
}
