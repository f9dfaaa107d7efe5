// SPDX-License-Identifier: Apache-2.0

// Package admin implements lockstep.v1.AdminService, used by operators and the other node: the status of a node, and
// changes of the pair.
package admin
