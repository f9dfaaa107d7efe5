// SPDX-License-Identifier: Apache-2.0

// Package session implements the session with which a node serves clients: a Session while the node is active, and
// none otherwise. Package server/node creates and ends sessions; Current holds the current one for the services.
package session
