// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"
	"os"
)

// FromEnv parses an environment variable. It returns the value otherwise if the variable is unset or empty.
func FromEnv[T any](name string, otherwise T, parse func(string) (T, error)) (T, error) {
	text := os.Getenv(name)
	if text == "" {
		return otherwise, nil
	}
	v, err := parse(text)
	if err != nil {
		return otherwise, fmt.Errorf("%s: %w", name, err)
	}
	return v, nil
}
