// SPDX-License-Identifier: Apache-2.0

package access

import "errors"

// ErrNotPeer is returned for calls reserved for the other node of the pair.
var ErrNotPeer = errors.New("only the other node of the pair may make this call")
