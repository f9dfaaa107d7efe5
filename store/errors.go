// SPDX-License-Identifier: Apache-2.0

package store

import (
	"errors"

	"github.com/lockstep-mq/lockstep/store/pager"
)

// Errors returned by Open.
var (
	// ErrPagesMissing is returned when page.db is missing and the log does not reach back far enough to rebuild it.
	ErrPagesMissing = errors.New("page.db is missing")
	ErrLogGap       = errors.New("log does not continue the checkpoint")
)

// Errors returned by the methods of a Store.
var (
	// ErrInterrupted is returned by ApplyUntil when stop is closed.
	ErrInterrupted = errors.New("apply interrupted")
	// ErrClosed is returned by every call after Close.
	ErrClosed = pager.ErrClosed
	// ErrFailed is returned by every call after a write or fsync failed (INV-7): the content of the disk is unknown.
	ErrFailed = errors.New("store has failed and must be reopened")
	// ErrFenceLower is returned by SetFence for a fence below the persisted one (INV-1).
	ErrFenceLower = errors.New("fence is below the persisted one")
	ErrOtherPair  = errors.New("data directory belongs to another pair")
	// ErrApplied is returned when a truncation would remove applied records (INV-5).
	ErrApplied = errors.New("record is applied and cannot be truncated")
	// ErrCommitted is returned when a truncation would remove records that are known to be committed (INV-13).
	ErrCommitted = errors.New("record is committed and cannot be truncated")
	ErrNoQueue   = errors.New("queue or subscription not found")
	// ErrPast is returned when the content at an LSN is requested and later records are already applied.
	ErrPast = errors.New("later records are already applied")
	// ErrSnapshotGone is returned when a snapshot was closed and its transfer cannot continue.
	ErrSnapshotGone = errors.New("snapshot is no longer available")
)
