// Package replication keeps two stores the same. The active's Primary turns waiting transactions into log batches, sends
// each batch to the standby while it writes it to its own log, and answers a transaction when it is durable on every node
// that must have it. The standby's Follower appends what it receives, syncs, acknowledges, and applies what is committed.
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
// # Who decides what
//
// The primary never decides who is in sync. It reports (Event) and obeys (SetState). What it does by itself only makes it
// stricter: it begins to require the acks of a standby that has caught up (SYNCING) before it reports it, so that the swap
// which adds the standby to in_sync is always safe (INV-3), and it stops acknowledging when it hears of a higher
// configuration (INV-1).
//
// gRPC and protobuf appear in transport.go alone. Package memnet has an in-memory transport for tests and simulation.
package replication
