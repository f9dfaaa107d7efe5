// SPDX-License-Identifier: Apache-2.0

//go:build unix

package cluster

import "errors"

// ErrNoNet is returned by NewNet where it cannot work: it needs Linux, root, and the tools ip (iproute2) and iptables.
var ErrNoNet = errors.New("cluster: no network namespaces here")
