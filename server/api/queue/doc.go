// SPDX-License-Identifier: Apache-2.0

// Package queue implements QueueService, through which clients publish, consume and manage queues, while the node has a
// session (package session).
package queue
