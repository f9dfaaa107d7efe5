// SPDX-License-Identifier: Apache-2.0

//go:build mutate

package mutate

import "os"

// Off reports whether the enforcement of the invariant with the given name is disabled.
func Off(name string) bool { return os.Getenv(Variable) == name }
