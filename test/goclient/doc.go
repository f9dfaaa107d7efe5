// SPDX-License-Identifier: Apache-2.0

// Package goclient runs programs with packages client and client/admin on a node.
package goclient
