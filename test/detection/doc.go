// SPDX-License-Identifier: Apache-2.0

// Package detection measures false takeovers and dropped standbys of pairs whose nodes are slow but alive, with several
// settings of the failure detection side by side (docs/decisions/0025).
package detection
