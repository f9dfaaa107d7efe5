// SPDX-License-Identifier: Apache-2.0

package datadir

import (
	"errors"
	"fmt"
)

// Errors of a data directory.
var (
	ErrInUse = errors.New("data directory is in use by another process")
	ErrNone  = errors.New("not a data directory")
	// ErrIdentity means that the identity file is corrupt or has a newer format.
	ErrIdentity = errors.New("identity file cannot be used")
	// ErrIdentityLost means that the identity file is corrupt, or is missing although the directory contains a node's
	// data. It matches ErrIdentity.
	ErrIdentityLost = fmt.Errorf("%w: corrupt or missing", ErrIdentity)
	// ErrRestoring means that the restore of a backup was interrupted.
	ErrRestoring = errors.New("restore of the data directory is incomplete")
	// ErrNotEmpty is returned for the target directory of a restore.
	ErrNotEmpty = errors.New("directory is not empty")
)
