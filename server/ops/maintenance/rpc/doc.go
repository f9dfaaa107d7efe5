// SPDX-License-Identifier: Apache-2.0

// Package rpc implements MaintenanceService, for operators and for the other node. It forwards calls that concern the
// pair to the active.
package rpc
