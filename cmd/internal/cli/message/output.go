// SPDX-License-Identifier: Apache-2.0

package message

import (
	"errors"
	"io"
	"os"
)

var errOutputClosed = errors.New("standard output is closed, or is /dev/null opened for reading and writing; " +
	"no message was consumed. To discard the output, use > /dev/null")

// checkOutput returns errOutputClosed, before a message is consumed, if writes to w are silently lost. The Go runtime
// opens /dev/null in place of a standard file that was closed when the process started.
func checkOutput(w io.Writer) error {
	if f, ok := w.(*os.File); ok && replaced(f) {
		return errOutputClosed
	}
	return nil
}
