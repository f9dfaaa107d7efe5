// SPDX-License-Identifier: Apache-2.0

//go:build unix

package cluster

import "errors"

// ErrNoNet is returned by NewNet on an unsupported machine. NewNet requires Linux, root, and the tools ip (iproute2)
// and iptables.
var ErrNoNet = errors.New("cluster: network namespaces are not supported")
