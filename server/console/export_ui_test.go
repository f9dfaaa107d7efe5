// SPDX-License-Identifier: Apache-2.0

package console

// ErrorText returns the text that a page shows for an error.
func ErrorText(err error) string { return describe(err).Text }
