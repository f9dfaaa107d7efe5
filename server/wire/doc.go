// SPDX-License-Identifier: Apache-2.0

// Package wire converts between protobuf and what the packages below the services work with, and between their errors
// and gRPC statuses (errors.go). It knows no service.
package wire
