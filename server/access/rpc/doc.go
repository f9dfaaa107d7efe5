// SPDX-License-Identifier: Apache-2.0

// Package rpc has AccessService: who may do what, for operators. Changes are made on the active, one at a time, and
// committed on the condition that the table of rules is still the one that was looked at.
package rpc
