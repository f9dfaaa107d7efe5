// SPDX-License-Identifier: Apache-2.0

// Package replication implements log replication between the two nodes of a pair. The active's Primary encodes
// submitted transactions into log batches, and sends each batch to the standby while it writes the batch to its own
// log. It acknowledges a transaction after the transaction is durable on every required node and applied on the
// active. The standby's Follower appends received records, syncs, acknowledges them, and applies committed records.
//
// # Commit path
//
//	Submit     copies the payload into the open batch. The frame is encoded once, into the buffer that the log,
//	           the stream and the memory tail share.
//	committer  takes all queued batches, passes them to the standby's session, then calls Append and Sync. New
//	           transactions collect in the next batch in the meantime, so batches grow with load.
//	session    one connection of a standby: sends batches without waiting for acks, up to a window of bytes in flight.
//	commit LSN min(durable here, durable on the standby if it is required). A transaction is acknowledged, applied or
//	           delivered only up to this LSN (INV-2).
//	applier    applies up to the commit LSN and completes transactions in commit order.
//
// Committer and applier are one goroutine each (decision 0028). While little is in flight, the committer sends a
// batch itself, without waking the session's sender.
//
// # Control
//
// The owner of the role receives each Event of the primary and controls the primary with Primary.Configure. A standby
// that connects catches up from a snapshot if necessary, then from the log files, then from memory. When the standby
// is within the window, the primary reports StandbyCaughtUp: its acks can be required. When all records that were
// committed before this requirement are durable on the standby, the primary reports StandbySynced: the standby may be
// added to in_sync (INV-3).
//
// The follower rejects an active below the fence in its store's identity. It persists a higher fence before it
// accepts messages with that fence (INV-1). After Stop returns, the follower accepts and acknowledges nothing
// (INV-4).
//
// A standby sends the position of the last record that it knows to be committed. An active without this record was
// probably restored from an older copy of its data directory. The active refuses the standby, and the standby also
// refuses such an active (INV-13). A standby truncates records that it knows to be committed only if a forced
// failover discarded them.
//
// Only the files transport*.go use gRPC and protobuf.
package replication
