// SPDX-License-Identifier: Apache-2.0

package backup

// Progress tells how far an operation is.
type Progress struct {
	// Phase is what is being done: "copy", "verify", "check", "plan", "log".
	Phase string
	// Done and Total are in bytes, but for "check", where they are pages. Total is 0 where it is not known.
	Done, Total uint64
}

// report calls fn if there is one.
func report(fn func(Progress), phase string, done, total uint64) {
	if fn != nil {
		fn(Progress{Phase: phase, Done: done, Total: total})
	}
}
