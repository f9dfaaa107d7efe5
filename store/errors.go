// SPDX-License-Identifier: Apache-2.0

package store

import (
	"errors"
	"fmt"
)

// Errors of Open.
var (
	// ErrInUse is returned when another process has the data directory open.
	ErrInUse = errors.New("data directory is in use by another process")
	// ErrIdentity is returned when the identity file is damaged or of a newer format.
	ErrIdentity = errors.New("identity file cannot be used")
	// ErrIdentityLost is returned when the identity file is damaged, or is missing beside the data of a node. It is an
	// ErrIdentity.
	ErrIdentityLost = fmt.Errorf("%w: it is damaged or missing", ErrIdentity)
	// ErrPagesMissing is returned when page.db is missing and the log does not reach back far enough to make it again.
	ErrPagesMissing = errors.New("page.db is missing")
	// ErrLogGap is returned when the log does not continue the checkpoint in page.db.
	ErrLogGap = errors.New("log does not continue the checkpoint")
	// ErrRestoring is returned when the restore of a backup into the directory was interrupted.
	ErrRestoring = errors.New("restore of the data directory was not finished")
	// ErrNotEmpty is returned when a backup is to be restored into a directory that has something in it.
	ErrNotEmpty = errors.New("directory is not empty")
)

// Errors of an open store.
var (
	// ErrInterrupted is returned by ApplyUntil when it was told to stop.
	ErrInterrupted = errors.New("applying was interrupted")
	// ErrClosed is returned by every call after Close.
	ErrClosed = errors.New("store is closed")
	// ErrFailed is returned by every call after a write or fsync failed (INV-7): only a restart can tell what is on
	// disk.
	ErrFailed = errors.New("store has failed and must be reopened")
	// ErrFenceLower is returned when a fence below the persisted one is set (INV-1).
	ErrFenceLower = errors.New("fence is below the persisted one")
	// ErrOtherPair is returned when the data directory belongs to another pair.
	ErrOtherPair = errors.New("data directory belongs to another pair")
	// ErrApplied is returned when a cut would remove records that were applied already (INV-5).
	ErrApplied = errors.New("record was applied and cannot be cut")
	// ErrCommitted is returned when a cut would remove records that are known to be committed (INV-13).
	ErrCommitted = errors.New("record is committed and cannot be cut")
	// ErrNoQueue is returned when a queue or subscription is not there (any more).
	ErrNoQueue = errors.New("no such queue or subscription")
	// ErrIndexDamaged is returned when a page is damaged that holds no messages but says where they are: the store has
	// to be replaced by a copy of the other node's.
	ErrIndexDamaged = errors.New("the store's index is damaged")
	// ErrPast is returned when the content at a record is asked for and more was applied already.
	ErrPast = errors.New("more was applied already")
	// ErrSnapshotGone is returned when an interrupted snapshot transfer cannot go on.
	ErrSnapshotGone = errors.New("snapshot is no longer kept")
)
