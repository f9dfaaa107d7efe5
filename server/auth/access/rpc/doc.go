// SPDX-License-Identifier: Apache-2.0

// Package rpc implements lockstep.v1.AccessService, the management of access rules. The active makes changes one at a
// time. A change is committed only if the access table is unchanged since it was read.
package rpc
