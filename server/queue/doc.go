// Package queue has QueueService, which clients publish, consume and manage queues with.
//
// What the node does at the moment is in the Session: there is one while the node is active, and none otherwise.
// Package server/node makes and ends them.
package queue
