// SPDX-License-Identifier: Apache-2.0

//go:build deep

// Package soak runs a pair under mixed load, usually for hours (LOCKSTEP_SOAK), and kills or stops a node every few
// minutes. It checks all responses to clients. It also checks that memory, goroutines, open files, files on disk, the
// log, page.db and the coordinator's store do not grow.
package soak
