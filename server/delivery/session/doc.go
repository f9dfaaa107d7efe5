// SPDX-License-Identifier: Apache-2.0

// Package session implements the session with which an active node serves clients. server/node creates and ends
// sessions; Current holds the current one for the services.
package session
