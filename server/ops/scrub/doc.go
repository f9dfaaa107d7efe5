// SPDX-License-Identifier: Apache-2.0

// Package scrub implements the integrity checks of a pair: it reads all data from disk periodically (scrub), repairs
// corruption from the other node, and compares both nodes.
package scrub
