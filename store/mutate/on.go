// SPDX-License-Identifier: Apache-2.0

//go:build mutate

package mutate

import "os"

// Off tells whether what enforces an invariant is switched off.
func Off(name string) bool { return os.Getenv(Variable) == name }
