// SPDX-License-Identifier: Apache-2.0

// Package goclient contains runnable examples of packages client and client/admin. Each one runs with a real node.
package goclient
