// SPDX-License-Identifier: Apache-2.0

// Package detection measures false takeovers and dropped standbys of pairs of slow but healthy nodes, with several
// failure detection settings in parallel (docs/decisions/0025).
package detection
