// SPDX-License-Identifier: Apache-2.0

// Package protoconv converts between protobuf messages and the internal types of the packages below the services. It is
// independent of the services.
package protoconv
