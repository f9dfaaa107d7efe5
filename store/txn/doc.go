// SPDX-License-Identifier: Apache-2.0

// Package txn is the encoding of logical transactions and of messages: the payload of the log's transaction records.
//
// A transaction names what changes, never where it is stored, so that two nodes with different page sizes can apply the
// same bytes. Queues and subscriptions are numbers; a name appears only where one is made. Sequence numbers are not in
// the log at all: they are assigned when the transaction is applied, in the order of the log, and so come out alike on
// both nodes. Times are decided by the active node and written into the transaction.
//
// A message is encoded once (see AppendMessage), by the node that accepts it. The same bytes are then the publish
// operation in the log, the entry in the queue's tail and the content of the page.
//
// All numbers are little endian; "uvarint" is the unsigned varint of encoding/binary, "varint" the zigzag one.
//
//	transaction   version u8 = 1 | flags u8 | operations u16 | time i64 (ms since 1970) |
//	              if flags&1: id length u8 | id | epoch u32 | sequence u64 |
//	              operations
//	operation     code u8 | length u32 (bytes that follow) | body
//	message       size u32 (bytes that follow) | flags u8 | time i64 (ms since 1970) |
//	              if flags&1: count uvarint | count x (uvarint length, key, uvarint length, value) |
//	              body
//
// Decoding never allocates per message and checks every length against what is there and against its limit first.
// An unknown version, flag or operation code is ErrNewerVersion: a node must stop there, because skipping what it does
// not understand would make its content differ from its partner's.
package txn
