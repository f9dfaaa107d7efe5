// SPDX-License-Identifier: Apache-2.0

// Package rpc has MaintenanceService: what package maintenance does, for operators and for the other node. What
// concerns the pair is passed on to the active.
package rpc
