// Package queue has QueueService, which clients publish, consume and manage queues with.
//
// What the node serves clients with at the moment is in Serving: a Session while the node is active, and none
// otherwise. Package server/node makes and ends them.
package queue
