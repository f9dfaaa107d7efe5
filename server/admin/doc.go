// SPDX-License-Identifier: Apache-2.0

// Package admin has AdminService, which operators and the other node ask a node with: its status, and what changes the
// pair.
package admin
