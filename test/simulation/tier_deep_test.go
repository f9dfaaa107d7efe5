// SPDX-License-Identifier: Apache-2.0

//go:build unix && deep

package simulation

// deep reports whether the deep tier runs.
const deep = true
