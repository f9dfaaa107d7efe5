// SPDX-License-Identifier: Apache-2.0

// Package wire converts between protobuf messages and the internal types of the packages below the services, and
// between their errors and gRPC statuses (errors.go). It is independent of the services.
package wire
