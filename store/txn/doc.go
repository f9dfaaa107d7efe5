// SPDX-License-Identifier: Apache-2.0

// Package txn implements the encoding of logical transactions and messages: the payload of the log's transaction
// records.
//
// A transaction describes logical changes, not positions in storage, so two nodes with different page sizes can apply
// the same bytes. Queues and subscriptions are numbers; a name appears only where one is created. The sequences of
// published messages are assigned in log order when the transaction is applied, and are the same on both nodes. The
// active node sets all times and writes them into the transaction.
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
//	              if flags&2: length uvarint | attributes, each tag u8 | length uvarint | value |
//	              if flags&1: count uvarint | count x (uvarint length, key, uvarint length, value) |
//	              body
//
// Decoding never allocates per message. It checks every length against the available bytes and its limit before use. An
// unknown version, flag or operation code is ErrNewerVersion: the node must stop, since skipping the record would make
// its content differ from its peer's.
package txn
