// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"fmt"
	"net"
	"strconv"
)

// reserveAt reserves the port of an address of 127.0.0.1, or a free port if the address is empty.
func reserveAt(address string) (*Port, error) {
	if address == "" {
		return ReservePort()
	}
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, fmt.Errorf("reserve a port: %w", err)
	}
	number, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return nil, fmt.Errorf("reserve a port: %w", err)
	}
	return reserve(int(number))
}
