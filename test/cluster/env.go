// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"
	"os"
)

// FromEnv returns the value of the named environment variable, converted by parse. If the variable is unset or
// empty, it returns fallback.
func FromEnv[T any](name string, fallback T, parse func(string) (T, error)) (T, error) {
	text := os.Getenv(name)
	if text == "" {
		return fallback, nil
	}
	v, err := parse(text)
	if err != nil {
		return fallback, fmt.Errorf("%s: %w", name, err)
	}
	return v, nil
}
