// SPDX-License-Identifier: Apache-2.0

//go:build unix && !linux

package cluster

import "context"

// Net is not supported; it requires Linux.
type Net struct{}

// NewNet returns ErrNoNet.
func NewNet(context.Context) (*Net, error) { return nil, ErrNoNet }

// Close does nothing.
func (*Net) Close() error { return nil }

func (*Net) host() string { return "" }

func (*Net) address(string) string { return "" }

func (*Net) command(string) []string { return nil }
