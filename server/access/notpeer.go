// SPDX-License-Identifier: Apache-2.0

package access

import "errors"

// ErrNotPeer is returned when the caller is not the other node of the pair, and only that may call.
var ErrNotPeer = errors.New("only the other node of the pair may call this")
