// SPDX-License-Identifier: Apache-2.0

// Package replication keeps two stores the same. The active's Primary turns waiting transactions into log batches,
// sends each batch to the standby while it writes it to its own log, and answers a transaction when it is durable on
// every node that must have it. The standby's Follower appends what it receives, syncs, acknowledges, and applies what
// is committed.
//
// # One commit, step by step
//
//	Submit     copies the payload into the open batch: the frame is encoded once, into the buffer that log, stream and
//	           memory tail share
//	committer  takes all waiting batches, hands them to the sessions (they send at once) and does Append and Sync; while
//	           it does, the next batch collects: batches form by themselves under load
//	session    one per connected standby: sends batches without waiting for acks, up to a window of bytes in flight
//	commit LSN min(durable here, durable on the standby if it is required): the only thing that lets a transaction be
//	           acknowledged, applied or delivered (INV-2)
//	applier    applies up to the commit LSN and completes the waiting transactions in commit order
//
// These are goroutines when there is much to do. To wake one costs more than a small transaction's whole work, so a
// transaction that is alone is committed by the goroutine that waits for it; a small batch is sent by the committer;
// and of those that wait, one applies for all.
//
// # Who decides what
//
// Package failover decides who is in sync; the primary reports (Event) and obeys (Primary.Configure). A standby that
// connects catches up from the log files, then from memory. Once it is within the window the primary reports
// StandbyCaughtUp; failover then requires its acks (SYNCING); once it is durable past everything that was committed
// before that, the primary reports StandbySynced, and failover may add it to in_sync (INV-3).
//
// The follower obeys an active that is not below the fence in its store's identity, and persists a higher one before it
// obeys it (INV-1). Stop ends that before it returns (INV-4).
//
// A standby names the last record that it knows to be committed. An active that lacks it was put back to an older image
// of its data directory, and refuses the standby rather than have it cut what was acknowledged; the standby refuses
// such an active by itself, too (INV-13). Only what a forced failover has made void is given up. Failover then gives
// the role to the node that holds more.
//
// gRPC and protobuf appear in transport.go alone. Package memnet has an in-memory transport for tests and simulation.
package replication
