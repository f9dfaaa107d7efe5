// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package broker

import "net"

// received is how many bytes have come over a connection, read or not; 0 if that cannot be known.
func received(net.Conn) int64 { return 0 }
