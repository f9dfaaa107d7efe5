// SPDX-License-Identifier: Apache-2.0

// Package protoconv converts between protobuf messages and internal types. It is independent of the services.
package protoconv
