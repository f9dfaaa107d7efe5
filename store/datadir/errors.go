// SPDX-License-Identifier: Apache-2.0

package datadir

import (
	"errors"
	"fmt"
)

// Errors of a data directory.
var (
	// ErrInUse is returned when another process has the data directory open.
	ErrInUse = errors.New("data directory is in use by another process")
	// ErrNone is returned when the directory does not exist.
	ErrNone = errors.New("not a data directory")
	// ErrIdentity is returned when the identity file is corrupt or has a newer format.
	ErrIdentity = errors.New("identity file cannot be used")
	// ErrIdentityLost is returned when the identity file is corrupt, or is missing although the directory contains a
	// node's data. It matches ErrIdentity.
	ErrIdentityLost = fmt.Errorf("%w: corrupt or missing", ErrIdentity)
	// ErrRestoring is returned when the restore of a backup into the directory was interrupted.
	ErrRestoring = errors.New("restore of the data directory is incomplete")
	// ErrNotEmpty is returned when the target directory of a restore is not empty.
	ErrNotEmpty = errors.New("directory is not empty")
)
