// SPDX-License-Identifier: Apache-2.0

//go:build deep

// Package soak runs a pair under mixed load for hours, kills its nodes every few minutes, and checks for growth of
// memory, goroutines, open files, files on disk, log, page.db, and the coordinator's own store.
package soak
