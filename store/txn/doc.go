// SPDX-License-Identifier: Apache-2.0

// Package txn implements the encoding of logical transactions and messages: the payload of the log's transaction
// records.
//
// A transaction describes logical changes, not locations in storage, so two nodes with different page sizes can apply
// the same bytes. Operations refer to queues and subscriptions by number. Names of queues and subscriptions are only
// in OpOwn and in the operations that create or import queues and subscriptions. The sequences of published messages
// are assigned in log order when the transaction is applied, and are the same on both nodes. The active that accepts a
// transaction sets its time.
//
// At a replica site, each transaction of the primary site is in an envelope with its position in the primary's log.
//
// The node that accepts a message encodes it (AppendMessage). The log, the queue's tail and the pages contain the same
// bytes, except that the commit of a prepared transaction sets the time of its messages. A message that is moved to a
// dead-letter queue, or back to its queue, is encoded again (Relabel).
//
// All numbers are little endian; "uvarint" is the unsigned varint of encoding/binary, "varint" the signed one.
//
//	transaction   version u8 = 1 | flags u8 | operations u16 | time i64 (ms since 1970) |
//	              if flags&1: id length u8 | id | epoch u32 | sequence u64 |
//	              operations
//	envelope      version u8 = 2 | lineage (16) | epoch uvarint | term uvarint | LSN uvarint | chain u32 |
//	              logical number uvarint | transaction
//	operation     code u8 | length u32 (bytes that follow) | body
//	message       size u32 (bytes that follow) | flags u8 | time i64 (ms since 1970) |
//	              if flags&2: length uvarint | attributes, each tag u8 | length uvarint | value |
//	              if flags&1: count uvarint | count x (uvarint length, key, uvarint length, value) |
//	              body
//
// A transaction is decoded without an allocation per message. Every length is checked against the available bytes and
// its limit before use. An unknown version or operation code, or an unknown flag of a transaction or message, is
// ErrNewerVersion: the node must stop, since the content of the nodes would differ if it skipped the record.
package txn
