// SPDX-License-Identifier: Apache-2.0

// Package queue implements QueueService, through which clients publish, consume and manage queues. It serves while a
// session exists (package serving).
package queue
