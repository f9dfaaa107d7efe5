// SPDX-License-Identifier: Apache-2.0

// Package fleet implements the directory of a fleet in etcd: which pair owns each queue, and where new queues are
// created.
//
// # Keys
//
// All keys are below a prefix. All changes are transactions that compare the keys on which they depend.
//
//	fleet              ID of the fleet; whether the directory is being rebuilt
//	counter            last assigned ownership epoch
//	pairs/<pair>       Member: pair ID, addresses, state, labels, capacity
//	load/<pair>        Load; attached to a lease, so that it expires when the pair is down
//	queues/<name>      owner: pair, ownership epoch, term of the claim, placement group
//	groups/<group>     pair of the queues of a placement group
//	rules/<pattern>    Rule: placement of new queues
//	moves/<epoch>      unfinished move: source, target, queues
//	rebuilt/<pair>     last rebuild to which the pair has contributed
//	forgotten/<ID>     pair that was lost permanently, and must not change the directory
//
// # Ownership
//
// The log of a pair determines which queues the pair owns (decision 0037). The directory assigns a name to one pair
// before the queue is created, so that no other pair creates a queue with this name:
//
//  1. Assign returns the owner of a name. If the name is not assigned, Assign chooses a pair and writes the entry. If
//     this pair is the owner, Assign claims the entry: it writes a new epoch, and the term of this active.
//  2. The active commits the queue with the epoch in its log, in the same term.
//  3. After the deletion of the queue, Release deletes the entry if it still has the epoch of the queue.
//
// An entry is deleted only if its value has not changed, and each claim changes it. Therefore, a delayed deletion has
// no effect on a queue that was created again. Reconcile deletes entries without a queue. It does not delete an entry
// that an active in a later term has claimed, because the queue may exist in a part of the log that this node does not
// have.
//
// # Moves
//
// The logs of the source and the target determine the progress of a move (decision 0038). BeginMove writes the
// intent, with the epoch of the move. The entries do not change until FinishMove, after the target has taken the
// queues. Until then, the entry of the source also reserves the name while the queue is fenced or incoming. An intent
// has no effect on ownership: a lost intent is written again (RestoreMove), and FinishMove and Rebuild do not need
// the intent.
//
// # Lost and restored directories
//
// A directory without the ID of the fleet was lost (ErrLost). A directory with a counter below a known epoch was
// restored from an older copy (ErrRestored). Both may lack entries of existing queues. The first active that detects a
// restored directory stops all assignments (ErrRebuilding), until each pair has called Rebuild.
//
// A pair detects a restored directory by the epochs of its queues, and by the counter that it has read before. A
// restored directory remains undetected while all nodes with newer epochs are down. An operator who restores etcd must
// rebuild the directory before clients create queues.
//
// Rebuild restores the pairs in the state open, the entries of their queues, and the placement groups of tags. A lost
// directory also contained rules, the groups of queues without tags, and the state draining: an operator must write
// them again. After an older copy was restored, these are as in that copy.
//
// If the directory belongs to a fleet that no longer has members, for example after the restoration of an old copy, an
// operator must delete all keys with the prefix.
//
// # Members
//
// The log of a pair contains its membership, and the directory contains its registration. Join registers a pair before
// the membership is committed, and Leave ends the registration before the end of the membership is committed. After a
// crash between the two steps, the pair can be registered without being a member, or be a member without a
// registration. In both cases, it creates no queues, and Join or Leave can be called again.
//
// Forget removes a pair that is lost permanently. Its ID remains, so that the pair cannot change the directory if it is
// started again: all transactions except that of PutLoad compare this key, or the registration of the pair. The entries
// of queues that move from the pair remain until the target has ended the move, because it may have taken the queues.
// The sources of moves to the pair assign the queues to themselves again (Reclaim), and then remove their fences.
//
// # Placement
//
// A new queue is created at the pair of its placement group, or else of the queue with the name of the group. If
// neither exists, or their pair has left, the rule with the most literal characters that matches the name determines
// the possible pairs. Of these, the open pair with a load and the highest weighted rendezvous hash of the group, or
// of the name, is chosen. The weight of a pair is its free space. For a partition of a partitioned queue (decision
// 0040), pairs with fewer partitions of this queue precede the others. The result is stored: a change of weights
// moves no queue.
//
// The transaction that assigns a name compares the related names (ErrPartitions). A queue must not have the name of a
// partitioned queue. The partitions of a queue must have the same number of partitions in their names.
//
// # Copy
//
// Run keeps a copy of the directory in memory. Methods without a context, such as Owner and Queues, read the copy.
// Methods that change the directory read etcd.
package fleet
