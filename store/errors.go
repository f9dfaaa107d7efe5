// SPDX-License-Identifier: Apache-2.0

package store

import (
	"errors"

	"github.com/lockstep-mq/lockstep/store/pager"
)

// Errors returned by Open.
var (
	// ErrPagesMissing is returned when page.db is missing and cannot be rebuilt from the log.
	ErrPagesMissing = errors.New("page.db is missing")
	ErrLogGap       = errors.New("log does not continue the checkpoint")
)

// Errors returned by the methods of a Store.
var (
	// ErrInterrupted is returned by ApplyUntil if stop is closed while it blocks.
	ErrInterrupted = errors.New("apply interrupted")
	// ErrClosed is returned by operations after Close.
	ErrClosed = pager.ErrClosed
	// ErrFailed is returned by operations after an error that makes the store unusable, such as a failed fsync (INV-7).
	ErrFailed = errors.New("store has failed and must be reopened")
	// ErrFenceLower is returned by SetFence for a fence below the persisted one (INV-1).
	ErrFenceLower = errors.New("fence is below the persisted one")
	ErrOtherPair  = errors.New("data directory belongs to another pair")
	// ErrApplied is returned when a truncation would remove applied records (INV-5).
	ErrApplied = errors.New("record is applied and cannot be truncated")
	// ErrCommitted is returned when a truncation would remove records that are known to be committed (INV-13).
	ErrCommitted = errors.New("record is committed and cannot be truncated")
	ErrNoQueue   = errors.New("queue or subscription not found")
	// ErrNotFenced is returned for the export of a queue that does not exist, or is neither fenced nor complete and
	// incoming under the given epoch.
	ErrNotFenced = errors.New("queue is not fenced")
	// ErrPast is returned when the state at an LSN is requested but later records are already applied.
	ErrPast = errors.New("later records are already applied")
	// ErrSnapshotGone is returned when the transfer of a snapshot cannot continue because the snapshot was closed.
	ErrSnapshotGone = errors.New("snapshot is no longer available")
)
