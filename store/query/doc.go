// SPDX-License-Identifier: Apache-2.0

// Package query answers read-only questions of server and admin about the applied state of a store: queues,
// subscriptions, messages and prepared transactions. An answer describes the state after one record, unless stated
// otherwise.
package query
