// SPDX-License-Identifier: Apache-2.0

package conditions

import (
	"slices"
	"time"
)

// settle is the Definition.After of severe conditions that also occur for a short time during a start, a restart, a
// switchover or a load peak.
const settle = 2 * time.Second

// All returns the definitions of all kinds, grouped by subject.
func All() []Definition {
	return slices.Concat(ofTheStandby(), ofTheRole(), ofIdentity(), ofTheCoordinator(), ofOperations(), ofSites(),
		ofFleets(), ofJobs(), ofTheDisk(), ofTheContent(), ofTheMachine())
}

var table = func() map[Kind]*Definition { //nolint:gochecknoglobals // a constant
	all := All()
	byKind := make(map[Kind]*Definition, len(all))
	for i := range all {
		byKind[all[i].Kind] = &all[i]
	}
	return byKind
}()

// Find returns the definition of a kind, or nil.
func Find(k Kind) *Definition { return table[k] }

func ofTheStandby() []Definition {
	return []Definition{
		{
			Kind: OneCopyOnly, Severity: Critical, Scope: OfPair, After: settle,
			Cause: "Only one node has all acknowledged messages. If it is lost, messages are lost; while it is " +
				"down, no node can take over.",
			Action: "If the node in the details is down, start it first: only it has all messages. Otherwise, do not stop " +
				"or restart it, and start the other node. If that node is running, its log and `lockstep status` show " +
				"why it is not in sync; it returns to sync automatically.",
		},
		{
			Kind: StandbyAbsent, Severity: Warning, Scope: OfPair, After: 30 * time.Second,
			Cause: "No standby has been connected to the active node for 30 seconds.",
			Action: "Check that the other node is running and can reach the address of the active node. Its log " +
				"and `lockstep status` show the reason.",
		},
		{
			Kind: StandbyCatchingUp, Severity: Warning, Scope: OfPair, After: 5 * time.Minute,
			Cause: "The standby has been connected for five minutes, but is not in sync. Usually, it is still " +
				"receiving a snapshot or the log, or the active node writes faster than the standby.",
			Action: "Watch the lag with `lockstep status --watch`. If it does not shrink, check the disk and the " +
				"network of the standby; `maintenance.snapshot-rate` limits the snapshot transfer.",
		},
		{
			Kind: ActiveUnreachable, Severity: Critical, Scope: OfNode, After: 3 * time.Second,
			Cause: "This node cannot reach the active node. Its view of the pair may be outdated, and its store " +
				"may fall behind.",
			Action: "Run `lockstep status` with the addresses of both nodes. If the active node serves clients, " +
				"fix the network between the nodes.",
		},
	}
}

func ofTheRole() []Definition {
	return []Definition{
		{
			Kind: NotServing, Severity: Critical, Scope: OfNode, After: 5 * time.Second,
			Cause: "This node neither serves clients nor follows an active node.",
			Action: "The details contain the reason. The condition ends automatically when both nodes and the " +
				"coordinator are reachable. If it does not, see docs/explanation/failover.md.",
		},
		{
			Kind: MinInSyncNotMet, Severity: Critical, Scope: OfPair, After: settle,
			Cause: "Writes are refused: only one node is in sync, and `min-in-sync` is 2.",
			Action: "Start the other node. To accept writes with one copy, run `lockstep settings set min-in-sync 1`; when " +
				"both nodes are in sync again, run `lockstep settings set min-in-sync 2`.",
		},
		{
			Kind: RecordRejected, Severity: Critical, Scope: OfNode, After: settle,
			Cause: "The coordinator has no cluster record, or an older one than this node has used: the " +
				"coordinator was restored, wiped or replaced. Or this node was restored from a backup, but an " +
				"empty node was started first and created the pair.",
			Action: "If a node serves clients, restart neither node. Check which coordinator this node uses. If it is the " +
				"right one and its record is lost or old, run `lockstep pair adopt` on the active node or, if no node " +
				"is active, on the node that has all records. To serve a restored backup instead of the messages of the " +
				"pair, follow \"Start a pair from a restored store\" in docs/how-to/back-up-and-restore.md.",
		},
		{
			Kind: ForcedUnresolved, Severity: Warning, Scope: OfPair,
			Cause: "A failover was forced, or the cluster record was rebuilt without a response from the other " +
				"node, and that node has not been in sync since. Messages that only that node acknowledged may be lost.",
			Action: "Start the other node. Before it rejoins, it saves the records that the active node does not " +
				"have to a file in its data directory.",
		},
		{
			Kind: Paused, Severity: Info, Scope: OfPair,
			Cause:  "The pair is paused: the standby does not take over automatically.",
			Action: "Run `lockstep resume` when the maintenance is finished.",
		},
		{
			Kind: DifferentReleases, Severity: Info, Scope: OfPair, After: settle,
			Cause: "The two nodes run different releases.",
			Action: "This is expected during an upgrade. When the upgraded node works, upgrade the other one; " +
				"until then, features of the newer release are refused.",
		},
	}
}

func ofIdentity() []Definition {
	return []Definition{
		{
			Kind: ForeignNode, Severity: Warning, Scope: OfPair,
			After: 5 * time.Second, // an announcement of a dead, replaced node expires earlier
			Cause: "A node that tries to connect to this pair is rejected: it belongs to another pair, is a third " +
				"node, or has an unsupported protocol version.",
			Action: "Find the node by the name or ID in the details, and stop it or correct its coordinator " +
				"settings.",
		},
		{
			Kind: PeerRejected, Severity: Critical, Scope: OfNode, After: 2 * time.Second,
			Cause: "The active node does not accept this node as its peer: the certificate or secret does not " +
				"match. This node cannot get in sync.",
			Action: "The details contain the error of the active node. Use a certificate with a name in " +
				"`tls.peer-names` (by default the advertised host), or the secret in the other node's " +
				"`peer-token-file`.",
		},
		{
			Kind: NotEncrypted, Severity: Info, Scope: OfNode,
			Cause: "This node listens without TLS on an address that other machines can reach (`insecure`): anyone " +
				"with access to that network can read and change its traffic.",
			Action: "None if that network is trusted. Otherwise set up TLS (docs/explanation/security.md; " +
				"`lockstep cert init` creates initial certificates) and remove `insecure`.",
		},
		{
			Kind: DuplicateProcess, Severity: Critical, Scope: OfNode,
			Cause: "Two processes use the identity of one node: for example, a copy of its data directory was " +
				"started.",
			Action: "Stop the process that was started last, and keep its directory. To add a node, use an empty " +
				"directory, never a copy.",
		},
		{
			Kind: Superseded, Severity: Critical, Scope: OfNode,
			Cause: "Another process with the identity of this node has replaced this process in the cluster record, or " +
				"the machine of this active node was resumed from an older memory snapshot or runs twice. This " +
				"process acknowledges nothing.",
			Action: "Find the other process with this node's identity: it has the messages that were acknowledged " +
				"since then. Stop this process and keep its directory. To stop the other process instead, first " +
				"make sure that the other node of the pair is in sync. If the machine was resumed from a memory " +
				"snapshot and no other process runs, restart this process: if no other node is in sync, it waits " +
				"for an operator.",
		},
		{
			Kind: StoreRolledBack, Severity: Critical, Scope: OfNode,
			Cause: "The data directory of this node is a copy or an older state, so transactions that the node had " +
				"committed may be missing. For example, its disk was restored, or its machine was resumed from an " +
				"older snapshot. If the other node is in sync, this node leaves the in-sync set. Otherwise, it waits " +
				"for an operator.",
			Action: "If the other node is in sync, this node fetches the missing records automatically. If not, " +
				"start the other node, or restore the newest image of either node. Only if neither is possible, " +
				"continue with loss: stop the node with the lower term at the end of its log, or with the lower LSN if " +
				"the terms are equal, and run `lockstep failover --force` on the other one.",
		},
		{
			Kind: HistoriesDiverged, Severity: Critical, Scope: OfPair,
			Cause: "Committed records of the other node are missing on the active node: one of the nodes was " +
				"rolled back or truncated. Neither node truncates committed records.",
			Action: "Do not force a failover before you have decided which node continues: each may have " +
				"acknowledged messages that are missing on the other one, and a higher LSN does not mean more " +
				"messages. Then follow \"When histories differ\" in docs/explanation/failover.md.",
		},
		{
			Kind: PossibleDataLoss, Severity: Critical, Scope: OfNode,
			Cause: "Acknowledged transactions may be missing from this store. For example, the machine stopped " +
				"uncleanly and `sync` is not \"always\", files were corrupt and were quarantined, or the store is not " +
				"the one that the cluster record expects.",
			Action: "If the other node is in sync, this node fetches everything automatically. If not, start the " +
				"other node, or repair this node's files (`damaged-…` in its data directory, see " +
				"docs/explanation/maintenance.md). Only if neither is possible, restore a backup, or continue with " +
				"loss: stop the node with the lower term at the end of its log, or with the lower LSN if the terms are " +
				"equal, and run `lockstep failover --force` on the other one.",
		},
	}
}

func ofTheCoordinator() []Definition {
	return []Definition{
		{
			Kind: CoordinatorLost, Severity: Critical, Scope: OfNode, After: 2 * time.Second,
			Cause: "This node cannot reach the coordinator, so it cannot change roles. Writes stop if the other " +
				"in-sync node is lost or restarted.",
			Action: "Check the processes of the coordinator and the network to them. A pair that serves clients " +
				"continues to serve them: restart neither node until the coordinator is reachable.",
		},
		{
			Kind: CoordinatorErrors, Severity: Critical, Scope: OfNode, After: settle,
			Cause: "The coordinator responds, but requests to it fail, so this node cannot change roles. Writes " +
				"stop if the other in-sync node is lost or restarted.",
			Action: "The details contain the error of the coordinator. Free space on its disk, or grant this node " +
				"write access to its key. Do not restart a node until requests succeed; a node that was restarted " +
				"returns to sync automatically.",
		},
		{
			Kind: VoterMissing, Severity: Warning, Scope: OfPair, After: 10 * time.Second,
			Cause: "One of the three voters does not respond. The quorum is intact, but the coordinator becomes " +
				"unavailable if another voter is lost.",
			Action: "Start the voter, or replace it with `lockstep pair replace`.",
		},
		{
			Kind: VoterBehind, Severity: Warning, Scope: OfPair, After: 30 * time.Second,
			Cause: "One of the three voters lags behind, or its disk does not respond. If another voter is lost, " +
				"role changes wait for this voter.",
			Action: "Check the disk and the network of that voter. If it does not catch up, replace it with " +
				"`lockstep pair replace`.",
		},
		{
			Kind: VoterRolledBack, Severity: Critical, Scope: OfPair,
			Cause: "The disk of a voter was restored to an older state: votes or records that the voter had " +
				"confirmed are missing. The voter no longer participates.",
			Action: "Stop the voter, move its directory away, start it and run `lockstep pair replace`. On a " +
				"node, the directory is `coordinator.raft.dir`, by default `raft` in the data directory; do not move " +
				"the store.",
		},
		{
			Kind: VoterWiped, Severity: Warning, Scope: OfPair, After: 10 * time.Second,
			Cause: "A voter with another identity, or without a cluster, responds at the address of one of the " +
				"three voters: its directory was lost or replaced.",
			Action: "Replace the old voter with the new one: run `lockstep pair replace`.",
		},
	}
}

func ofOperations() []Definition {
	return []Definition{
		{
			Kind: SwitchoverFailed, Severity: Warning, Scope: OfNode,
			Cause: "The last switchover requested from this node failed. The roles are unchanged.",
			Action: "The details contain the reason. Fix it and retry; the condition ends with the next successful " +
				"switchover, or after ten minutes.",
		},
		{
			Kind: SwitchoverStuck, Severity: Warning, Scope: OfPair, After: 15 * time.Second,
			Cause: "A requested switchover has exceeded its time limit without a result.",
			Action: "Check that the standby is in sync and that the coordinator is reachable. The active node " +
				"cancels the switchover and resumes automatically.",
		},
		{
			Kind: PlanFailed, Severity: Warning, Scope: OfPair,
			Cause: "The last rolling operation (resize, compact or restart) failed.",
			Action: "`lockstep store plan` prints the failed step and the reason. Fix the cause and start the " +
				"operation again; the condition ends with the next plan.",
		},
		{
			Kind: PlanStuck, Severity: Warning, Scope: OfPair,
			Cause: "A rolling operation has made no progress for ten minutes, or has retried its steps at least " +
				"five times.",
			Action: "The details contain the reason. The operation continues automatically when possible. To " +
				"cancel it, run `lockstep store plan --cancel`.",
		},
	}
}

func ofSites() []Definition {
	return []Definition{
		{
			Kind: SiteLag, Severity: Warning, Scope: OfPair, After: 10 * time.Second,
			Cause: "This replica is more than 30 seconds behind the primary site, or the replica of this primary exceeds " +
				"`site.max-lag`, so that writes are refused with `SITE_LAG`. An unplanned promotion would lose the " +
				"transactions that the replica lacks.",
			Action: "Check the lag with `lockstep site status`. If it does not decrease, check the bandwidth between the " +
				"sites, and the disks and the CPU load of the replica. To continue without the replica, set `site.max-lag` of " +
				"the primary to 0.",
		},
		{
			Kind: SiteUnreachable, Severity: Warning, Scope: OfPair, After: 30 * time.Second,
			Cause: "This replica is not connected to the primary site, or this primary receives no valid response " +
				"from the other site. New transactions may exist at one site only.",
			Action: "The details contain the error. Check that the other pair has an active node, that the addresses in " +
				"`site.remote` are reachable, and that both sites use the same site token. If the primary site is lost, " +
				"run `lockstep site promote`.",
		},
		{
			Kind: SiteBehind, Severity: Critical, Scope: OfPair,
			Cause: "The log of the primary site no longer contains the next record that this replica needs. The replica " +
				"receives nothing.",
			Action: "Stop both nodes of this site, move both data directories away, and follow \"Set up the replica again\" " +
				"in docs/how-to/fail-over-to-another-site.md. Raise `site.keep-bytes` of the primary to bridge longer " +
				"outages.",
		},
		{
			Kind: SiteDiverged, Severity: Critical, Scope: OfPair,
			Cause: "This replica has a record that the log of the primary site does not contain. For example, the " +
				"primary was restored, or lost transactions in a forced failover. The replica receives nothing.",
			Action: "Check that the primary has the expected content. If this replica is the better copy, stop both nodes " +
				"of the primary, keep their data directories, and promote this site with `lockstep site promote`. " +
				"Otherwise, stop both nodes of this site, move both data directories away and keep them, and follow " +
				"\"Set up the replica again\" in docs/how-to/fail-over-to-another-site.md.",
		},
		{
			Kind: SiteStopped, Severity: Critical, Scope: OfPair, After: 5 * time.Second,
			Cause: "This site has stopped accepting writes for a switch, and does not know whether the other site has become " +
				"the primary.",
			Action: "The condition ends when the other site responds. If the other site is lost, run `lockstep site " +
				"promote` at this site. If both are running, fix the network between them.",
		},
		{
			Kind: SupersededBySite, Severity: Critical, Scope: OfPair, After: settle,
			Cause: "The other site was promoted, and this site cannot become its replica: it has transactions that the new " +
				"primary lacks, or it cannot commit the change. This site accepts no writes once it has stopped.",
			Action: "The details contain the error. If it is not about missing transactions, fix its cause: the site " +
				"retries. Otherwise, this site's active node has saved the transactions to a file in its data " +
				"directory: copy the file to another machine; `lockstep store dump-log` shows it. Then stop both nodes, " +
				"move both data directories away and keep them, and follow \"Set up the replica again\" in " +
				"docs/how-to/fail-over-to-another-site.md.",
		},
		{
			Kind: TwoPrimaries, Severity: Critical, Scope: OfPair, After: 10 * time.Second,
			Cause: "The pair at `site.remote` accepts writes like this pair, and at least one of them belongs to a group of " +
				"sites. Messages that one of them accepts are missing at the other.",
			Action: "Select the primary. Stop the clients of the other pair, and make it a replica with `lockstep site " +
				"demote`. While a replica is set up, the condition ends with that command.",
		},
	}
}

func ofFleets() []Definition {
	return []Definition{
		{
			Kind: FleetDirectoryUnavailable, Severity: Warning, Scope: OfNode, After: 10 * time.Second,
			Cause: "The etcd of the fleet does not respond to this node. All queues of the pair remain available, but no " +
				"queue can be created, and the owners of new queues of other pairs are unknown.",
			Action: "Check that the etcd endpoints in `fleet.endpoints` or `coordinator.etcd.endpoints` are reachable, and " +
				"that user, password and certificates are valid. The details contain the error.",
		},
		{
			Kind: FleetDirectoryLost, Severity: Critical, Scope: OfPair, After: settle,
			Cause: "The directory of the fleet was lost, was restored from an older copy, contains malformed values, or " +
				"lacks this pair. No queue can be created.",
			Action: "Check that the nodes use the correct etcd and `fleet.prefix`. Then run `lockstep fleet rebuild`, which " +
				"writes the directory from the logs of all pairs.",
		},
		{
			Kind: FleetConflict, Severity: Critical, Scope: OfPair,
			Cause: "The directory of the fleet assigns queues of this pair to other pairs, or another pair has its name. " +
				"Clients can use the queues at either pair.",
			Action: "The details contain the names. If another pair has the name, set another name in `fleet.pair` of the " +
				"pair that is not a member. Otherwise, at the pair that must not have the queue, pause publishes to it, " +
				"consume or move its messages, and run `lockstep queue delete --if-empty`.",
		},
		{
			Kind: FleetMismatch, Severity: Warning, Scope: OfNode, After: 10 * time.Second,
			Cause: "`fleet.pair` of this node differs from the membership in the log of the pair, or the pair has left the " +
				"fleet or cannot join it. No queue can be created on this node.",
			Action: "If the pair has left the fleet, remove `fleet.pair` from both nodes, and restart them. If the pair is a " +
				"member, set `fleet.pair` of both nodes to its name in the fleet, and restart them; to leave the fleet, run " +
				"`lockstep fleet leave` after the restart. Otherwise, fix the error in the details.",
		},
		{
			Kind: FleetQueuesFenced, Severity: Critical, Scope: OfPair,
			Cause: "Queues have been fenced for more than 12 s, because their move to another pair makes no progress. " +
				"Clients cannot use the queues.",
			Action: "Start the pair in the details: it continues or cancels the move. `lockstep fleet moves` shows the error.",
		},
		{
			Kind: FleetMoveStuck, Severity: Warning, Scope: OfPair,
			Cause: "A move of queues has made no progress for 5 minutes.",
			Action: "The details contain the reason. Start the other pair of the move, or cancel the move with `lockstep " +
				"fleet move --cancel`.",
		},
	}
}

func ofJobs() []Definition {
	return []Definition{
		{
			Kind: JobFailed, Severity: Warning, Scope: OfPair,
			Cause: "The last run of a scheduled job failed.",
			Action: "`lockstep job history` lists the runs with their errors. Run the job again with `lockstep " +
				"job run`; the condition ends with a successful run.",
		},
		{
			Kind: JobStuck, Severity: Warning, Scope: OfPair,
			Cause: "A run of a scheduled job is still in progress although its next run is due.",
			Action: "Check its progress with `lockstep status`. If it hangs, make sure that both nodes are in sync and " +
				"that the coordinator is reachable. Then restart the node that runs the job, and start the job again " +
				"with `lockstep job run`, unless it is already running.",
		},
		{
			Kind: ScheduleFailed, Severity: Warning, Scope: OfPair,
			Cause: "The queue of a schedule refused its last occurrence: the queue is missing, full or paused, for example.",
			Action: "`lockstep schedule show` lists the occurrences with their errors. The publish is retried until the next " +
				"occurrence, or, with missed: skip, for one minute. Then `lockstep schedule run` can replace the missed " +
				"message. The condition ends when an occurrence is published, not after a manual run, or when the schedule is " +
				"paused.",
		},
		{
			Kind: BackupMissing, Severity: Critical, Scope: OfPair,
			Cause: "A backup job was created or changed more than two intervals ago, but none of its recorded runs " +
				"succeeded. Without another backup, a restore is not possible.",
			Action: "Check the failed runs with `lockstep job history`: the directory has no space or is not " +
				"writable, or the S3 server of the bucket is unreachable or denies access. Then run the job: " +
				"`lockstep job run`. The condition ends with a successful run.",
		},
		{
			Kind: BackupOld, Severity: Warning, Scope: OfPair,
			Cause: "The last successful run of a backup job started more than two of its intervals ago.",
			Action: "Check with `lockstep job history` why the last runs failed or were skipped: the directory " +
				"has no space or is not writable, or the S3 server of the bucket is unreachable or denies access. " +
				"Then run the job: `lockstep job run`. The condition ends with a successful run.",
		},
		{
			Kind: ArchiveGap, Severity: Critical, Scope: OfNode,
			Cause: "The log archive of this node has a gap, or replaces an archive of another history. A " +
				"point-in-time restore from an earlier backup cannot go beyond the gap, or use the new archive.",
			Action: "Back up this node now: a restore to later points in time is then possible again, and the " +
				"condition ends. A backup of the other node does not end it. To prevent further gaps, give the " +
				"archive more space, fix the connection to its S3 server, or raise `wal.archive-hold-bytes`.",
		},
		{
			Kind: ArchiveLag, Severity: Warning, Scope: OfNode, After: time.Minute,
			Cause: "The log of this node is currently not being archived. Up to `wal.archive-hold-bytes` of it is " +
				"retained; beyond that, the archive has a gap.",
			Action: "The details contain the error. For a directory, free space or make it writable. For a bucket, " +
				"check that its S3 server responds, and that the node's key may list, get, put and delete.",
		},
	}
}

func ofTheDisk() []Definition {
	return []Definition{
		{
			Kind: DiskLow, Severity: Critical, Scope: OfNode,
			Cause: "The free space for this node's store is below `disk.low-watermark` including free pages of the " +
				"store, or below half of it without these pages.",
			Action: "The details contain the recommended action. Free or add space on that machine, or release " +
				"pages with `lockstep store compact` or `lockstep store shrink`. While at least half of the " +
				"watermark is free, it is sufficient to consume or purge messages.",
		},
		{
			Kind: PublishesRefused, Severity: Critical, Scope: OfPair,
			Cause: "Publishes are refused, because the disk of the active node is nearly full (`disk-low`). " +
				"Consumers continue.",
			Action: "Free or add space on the active node. If its filesystem has more than half of `disk.low-watermark` " +
				"free, and the standby has more space, `lockstep switchover` resumes publishes. With less, do not " +
				"switch over: this node would leave the in-sync set as a standby. A preferred node takes the role back " +
				"after `failover.failback-delay`.",
		},
		{
			Kind: ReplicationStopped, Severity: Critical, Scope: OfNode,
			Cause: "This standby has disconnected because its disk is nearly full. It keeps its data. The active " +
				"node continues alone, or refuses writes with `min-in-sync: 2`.",
			Action: "Free or add space on that machine. The node then reconnects automatically.",
		},
		{
			Kind: DiskStalled, Severity: Critical, Scope: OfNode, // disk.stall-timeout replaces After
			Cause: "A write or sync of this node's log has not returned within `disk.stall-timeout`. Publishes " +
				"wait for it, and in a pair the node has stopped its heartbeats.",
			Action: "Check the disk and the machine's kernel log. The other node takes over if it is in sync; a " +
				"standalone node resumes when the disk responds.",
		},
		{
			Kind: SyncSlow, Severity: Warning, Scope: OfNode, After: 10 * time.Second,
			Cause: "Writes to this node's log, including syncs, take more than 100 ms on average. Acknowledgements " +
				"wait for them.",
			Action: "Check that disk for other load (iostat), a hardware fault, or a disabled write cache.",
		},
		{
			Kind: SyncOff, Severity: Info, Scope: OfNode,
			Cause: "`sync` is not \"always\": nodes acknowledge messages before they are on disk.",
			Action: "None if intended: the failure of one node loses no messages, but a simultaneous power failure " +
				"of both nodes can. Otherwise set `sync: always`.",
		},
		{
			Kind: PageCacheOnly, Severity: Info, Scope: OfNode,
			Cause: "The filesystem does not support O_DIRECT, which `memory.page-cache` requires. Writes go " +
				"through the page cache.",
			Action: "None: it is safe, only slower. Use ext4 or xfs, or set `memory.page-cache: keep`.",
		},
	}
}

func ofTheContent() []Definition {
	return []Definition{
		{
			Kind: CorruptMessages, Severity: Critical, Scope: OfNode,
			Cause: "Messages on this node are corrupt.",
			Action: "The node fetches them from the other node automatically: start it if it is down. `lockstep verify` " +
				"lists them. If both nodes have lost them, check a replica site and the backups for intact copies " +
				"first; a replica with intact copies can become the primary (`lockstep site switch`). Only then discard " +
				"the messages with `lockstep queue drop-corrupt`.",
		},
		{
			Kind: CorruptPageFile, Severity: Critical, Scope: OfNode,
			Cause: "The page file of this node is corrupt. It must be replaced with a copy of the other node's store " +
				"or, on a standalone node, with a backup. Until then, it is read-only.",
			Action: "Bring the other node into sync; the store is then replaced automatically. On a standalone node, " +
				"restore a backup. Check the disk.",
		},
		{
			Kind: CorruptLog, Severity: Warning, Scope: OfNode,
			Cause:  "A part of this node's log is corrupt. Its content is in the page file.",
			Action: "The node discards that part after two checkpoints. Check the disk.",
		},
		{
			Kind: DigestsDiffer, Severity: Critical, Scope: OfPair, Alarm: "differ",
			Cause: "The two nodes, or the two sites, have different content.",
			Action: "Determine which one is correct before you switch over; `lockstep verify --deep` compares the " +
				"nodes again, and `lockstep verify --site` the sites. This is a bug: please report it.",
		},
		{
			Kind: PreparedOld, Severity: Warning, Scope: OfPair,
			Cause: "A transaction was prepared more than an hour ago, and its coordinator has not decided it. " +
				"The transaction reserves messages and queue space.",
			Action: "Start the transaction coordinator again: it recovers pending decisions. If it is permanently " +
				"lost, determine the decision of the other participants and apply it with `lockstep txn commit` or " +
				"`lockstep txn rollback`; `lockstep txn list` lists all prepared transactions.",
		},
		{
			Kind: DeadLetterQueueFull, Severity: Warning, Scope: OfPair, After: 10 * time.Second,
			Cause: "A dead-letter queue is full, or dead letters are larger than its `max_bytes`. Dead letters that do " +
				"not fit stay in the source queue and are not delivered; a queue with `overflow: dead-letter-head` " +
				"may refuse publishes.",
			Action: "The details name both queues. Consume from the dead-letter queue, purge it, or raise its " +
				"limits: the messages are moved within a second. For messages larger than its `max_bytes`, raise that " +
				"limit.",
		},
		{
			Kind: QueuesPaused, Severity: Info, Scope: OfPair,
			Cause: "Queues or subscriptions are paused: their publishes are refused, or their messages are not " +
				"delivered.",
			Action: "`lockstep queue show` shows who paused the queue, when and why. Run `lockstep queue resume` or " +
				"`lockstep subscription resume` when the work is finished.",
		},
		{
			Kind: ConsumerStuck, Severity: Warning, Scope: OfPair,
			Cause: "A consumer has had messages in flight for more than 10 minutes, and has neither answered nor " +
				"extended any of them in that time. These messages are not delivered to other consumers.",
			Action: "The details name the queue, the subscription and the address of the consumer. Restart the consumer, " +
				"or disconnect it with `lockstep connection close`: its messages are redelivered. An `ack_timeout` of the " +
				"queue redelivers the messages of a stopped consumer automatically.",
		},
	}
}

func ofTheMachine() []Definition {
	return []Definition{
		{
			Kind: MemoryOverBudget, Severity: Warning, Scope: OfNode, After: 30 * time.Second,
			Cause: "The process uses more memory than 125 % of `memory.budget` plus 64 MiB.",
			Action: "Raise `memory.budget`, or lower `limits.pending-bytes`, `limits.outstanding`, the number of " +
				"consumers or the message size.",
		},
		{
			Kind: CertificateExpires, Severity: Warning, Scope: OfNode,
			Cause: "A certificate of this node or of the witness expires within 14 days.",
			Action: "Replace the file on that machine; it is reloaded automatically. `lockstep cert show` prints " +
				"its content.",
		},
		{
			Kind: CertificateExpired, Severity: Critical, Scope: OfNode,
			Cause: "A certificate of this node or of the witness has expired: new connections with it are " +
				"refused.",
			Action: "Replace the file on that machine; it is reloaded automatically.",
		},
		{
			Kind: CredentialsInvalid, Severity: Warning, Scope: OfNode,
			Cause: "A file with a certificate, key, CA or secret has changed and is invalid. The node uses the " +
				"previous content.",
			Action: "Fix the file; it is reloaded automatically. `lockstep cert show` prints its content.",
		},
		{
			Kind: AuthFailures, Severity: Info, Scope: OfNode,
			Cause: "At least 100 calls within a minute had an invalid or expired token or certificate: a client " +
				"with an old token, or an attack.",
			Action: "Find the address in the log, and give that client a valid token, or block it. Clients at other " +
				"addresses are not affected.",
		},
		{
			Kind: JWKSUnavailable, Severity: Warning, Scope: OfNode,
			Cause: "The keys of the JWT issuer (`auth.jwt`) cannot be fetched. Tokens signed with a cached key are " +
				"accepted; other tokens cannot be verified, and their clients wait.",
			Action: "Check the issuer's server and the network to it, or the file `auth.jwt.jwks-file`.",
		},
		{
			Kind: AuditErrors, Severity: Warning, Scope: OfNode,
			Cause: "The audit file cannot be written, or its disk is too slow: records of administrative and " +
				"denied calls are lost. Calls are not blocked.",
			Action: "Free space on the disk of `audit.file`, or repair the disk. `lockstep audit tail` prints the " +
				"newest records; `lockstep_audit_records_lost_total` counts the records missing in the file.",
		},
		{
			Kind: AccessUnrestricted, Severity: Warning, Scope: OfNode,
			Cause: "Other machines can reach this node, and all clients have all rights: no access rule exists, " +
				"and `access.mode` is `open`.",
			Action: "Create access rules (docs/explanation/security.md). The first rule ends the condition, and so does " +
				"`access.mode: deny` with `access.operators` on both nodes.",
		},
		{
			Kind: ClockSkew, Severity: Warning, Scope: OfPair,
			Cause: "The clocks of the two nodes differ by more than two seconds. Expiry, schedules and log " +
				"timestamps are affected; acknowledgements are not.",
			Action: "Check the time synchronization (chrony, ntpd) of both machines.",
		},
	}
}
