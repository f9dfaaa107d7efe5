// SPDX-License-Identifier: Apache-2.0

// Package queue has QueueService, which clients publish, consume and manage queues with. It serves while there is a
// session (package serving).
package queue
