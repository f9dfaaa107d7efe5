// SPDX-License-Identifier: Apache-2.0

// Package rewrite changes a page file as a whole: it writes it anew with another page size or without gaps, and gives
// its free end back to the file system. What it needs of the live store is the interface Engine, which the store gives
// it: have Apply wait, swap the file, move runs of messages.
package rewrite
