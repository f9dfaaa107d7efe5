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
//	rebuilt/<pair>     last rebuild to which the pair has contributed
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
// # Placement
//
// A new queue is created at the pair of its placement group. If the group has no queues, the rule with the most
// literal characters that matches the name determines the possible pairs. Of these, the open pair with the highest
// weighted rendezvous hash of the group, or of the name, is chosen. The weight of a pair is its free space. The result
// is stored: a change of weights moves no queue.
//
// # Copy
//
// Run keeps a copy of the directory in memory. Owner, Pairs, Queues and Rules read the copy. All other operations read
// etcd.
package fleet
