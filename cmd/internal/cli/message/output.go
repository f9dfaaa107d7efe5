// SPDX-License-Identifier: Apache-2.0

package message

import (
	"errors"
	"io"
	"os"

	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
)

var errOutputClosed = cli.WithHint(errors.New("standard output is closed, or is /dev/null opened for reading and "+
	"writing; no message was consumed"), "`> /dev/null` to discard the output")

// checkOutput returns errOutputClosed if writes to w would be silently lost. It is called before a message is consumed.
// The Go runtime opens /dev/null in place of a standard file that was closed when the process started.
func checkOutput(w io.Writer) error {
	if f, ok := w.(*os.File); ok && replaced(f) {
		return errOutputClosed
	}
	return nil
}
