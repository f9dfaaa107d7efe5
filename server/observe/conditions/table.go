// SPDX-License-Identifier: Apache-2.0

package conditions

import (
	"slices"
	"time"
)

// settle is the maximum duration, with a margin, of states that occur during a start, a restart, a switchover or a
// moment of load: a reconnected standby is in sync within a few hundred milliseconds. It is short because the next
// fault in such a state causes harm. Roles and the in-sync set in a node's status are reported immediately.
const settle = 2 * time.Second

// All returns the table: each kind once, in the order of docs/how-to/respond-to-conditions.md.
func All() []Definition {
	return slices.Concat(ofTheStandby(), ofTheRole(), ofIdentity(), ofTheCoordinator(), ofOperations(), ofJobs(),
		ofTheDisk(), ofTheContent(), ofTheMachine())
}

// table maps kinds to definitions. It is never modified.
var table = func() map[Kind]*Definition { //nolint:gochecknoglobals // a constant, but for the language
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
			Cause: "Only one node holds everything that was acknowledged: if it is lost, messages are lost, and " +
				"while it is down, no node can take over.",
			Action: "Start the other node, or see in its log and status why it does not follow; it gets in sync by itself. " +
				"Do not stop or restart the node that is in sync.",
		},
		{
			Kind: StandbyAbsent, Severity: Warning, Scope: OfPair, After: 30 * time.Second,
			Cause: "No standby has been connected to the active for some time.",
			Action: "Look whether the other node's process runs and whether it reaches the active's address; its log " +
				"and `lockstep status` say what it waits for.",
		},
		{
			Kind: StandbyCatchingUp, Severity: Warning, Scope: OfPair, After: 5 * time.Minute,
			Cause: "The standby is connected but has not come into sync for some time: it fetches a snapshot or the " +
				"log, or the active writes faster than it can follow.",
			Action: "Watch the lag in `lockstep status --watch`. If it does not shrink, look at disk and network of " +
				"the standby; " +
				"`maintenance.snapshot-rate` limits how fast a snapshot comes.",
		},
		{
			Kind: ActiveUnreachable, Severity: Critical, Scope: OfNode, After: 3 * time.Second,
			Cause: "This node does not see the active: what it says of the pair may be out of date, and it falls behind.",
			Action: "Ask the active itself: `lockstep status` with both addresses. If the active serves, mend the " +
				"network between the nodes.",
		},
	}
}

func ofTheRole() []Definition {
	return []Definition{
		{
			Kind: NotServing, Severity: Critical, Scope: OfNode, After: 5 * time.Second,
			Cause: "This node neither serves clients nor follows an active that does.",
			Action: "The details say what it waits for. With both nodes up and the coordinator reachable it goes " +
				"away by itself; otherwise see docs/explanation/failover.md.",
		},
		{
			Kind: MinInSyncRefuses, Severity: Critical, Scope: OfPair, After: settle,
			Cause:  "Writes are refused because only one node is in sync and `min-in-sync` is 2.",
			Action: "Bring the other node back. To go on with one copy, `lockstep settings set min-in-sync 1`.",
		},
		{
			Kind: RecordRefused, Severity: Critical, Scope: OfNode, After: settle,
			Cause: "The coordinator has no record of the pair, or an older one than this node has obeyed: it was " +
				"restored, wiped, or is another one. Or this node was restored from a backup, and an empty one that " +
				"was started first has begun a pair.",
			Action: "Find out which coordinator this node is configured with. If it is the right one and its record " +
				"is lost, `lockstep pair adopt` writes it anew. To serve a restored backup, stop both nodes, give the " +
				"other one an empty data directory, remove the record or use another `coordinator.etcd.prefix`, and " +
				"start this node first.",
		},
		{
			Kind: ForcedUnsettled, Severity: Warning, Scope: OfPair,
			Cause: "A node was made active by force and the other one has not been in sync since: what only that one " +
				"had acknowledged may be lost.",
			Action: "Bring the other node back. What it has beyond the fork is kept in a file in its data directory " +
				"before it follows again.",
		},
		{
			Kind: Paused, Severity: Info, Scope: OfPair,
			Cause:  "The pair is paused: no standby takes over by itself.",
			Action: "When the work is done: `lockstep resume`.",
		},
		{
			Kind: DifferentReleases, Severity: Info, Scope: OfPair, After: settle,
			Cause: "The two nodes run different releases.",
			Action: "That is fine during an upgrade. Upgrade the other node when this one has proved itself; what " +
				"only the newer release knows is refused until then.",
		},
	}
}

func ofIdentity() []Definition {
	return []Definition{
		{
			Kind: ForeignNode, Severity: Warning, Scope: OfPair,
			After: 5 * time.Second, // the announcement of a dead, replaced node expires earlier
			Cause: "A node that does not belong to this pair tries to connect: it is of another pair, or a third " +
				"one, or speaks a protocol that this release does not know.",
			Action: "Find it by the name or id in the details, and stop it or correct its coordinator settings. This " +
				"pair goes on undisturbed.",
		},
		{
			Kind: PeerRefuses, Severity: Critical, Scope: OfNode, After: 2 * time.Second,
			Cause: "The active does not take this node for the other one of its pair: the certificate or the secret that " +
				"this node shows is none of the pair's. It cannot get in sync.",
			Action: "The details are the active's own words. Give this node a certificate with a name in `tls.peer-names` " +
				"(by default the host that it advertises), or the secret in the other node's `peer-token-file`.",
		},
		{
			Kind: NotEncrypted, Severity: Info, Scope: OfNode,
			Cause: "This node listens without TLS on an address that other machines reach (`insecure`): whoever can " +
				"read or reach that network can read and change everything.",
			Action: "Nothing, if that network is trusted. Otherwise set TLS up (docs/explanation/security.md; " +
				"`lockstep cert init` makes certificates to begin with), and take `insecure` away.",
		},
		{
			Kind: TwoProcesses, Severity: Critical, Scope: OfNode,
			Cause: "Two processes run with the identity of one node: a copy of a data directory was started, " +
				"or the same one twice.",
			Action: "Stop the one that was started last, and keep its directory aside. A node is added with an empty " +
				"directory, never with a copy.",
		},
		{
			Kind: Superseded, Severity: Critical, Scope: OfNode,
			Cause: "The pair's record names this node, but was written by another run of it: this process has no " +
				"right to act any more and acknowledges nothing.",
			Action: "Find the other process with this node's identity: what the pair has acknowledged since is " +
				"there. Stop this one, and keep its directory aside. If it is the other one that has to go, first " +
				"see to it that the pair's other node is in sync.",
		},
		{
			Kind: StorePutBack, Severity: Critical, Scope: OfNode,
			Cause: "This node's store ends before what it is known to have committed: an older image of its disk was " +
				"put back. It has left the in-sync set.",
			Action: "If the other node is in sync, this one fetches what is missing by itself. If not, bring back " +
				"the other node, or the newest image of either. Only if both are lost for good: stop the node whose " +
				"log ends first, and `lockstep failover --force` on the other one.",
		},
		{
			Kind: HistoriesDiverged, Severity: Critical, Scope: OfPair,
			Cause: "The active lacks committed records that the other node has: one of them was put back or cut, and " +
				"neither cuts what is committed.",
			Action: "Force nothing before you have decided which of the two goes on: each may have acknowledged " +
				"messages that the other one lacks, and more LSNs do not mean more of them. Then do what " +
				"docs/explanation/failover.md says under \"When histories differ\".",
		},
		{
			Kind: StoreMayHaveLost, Severity: Critical, Scope: OfNode,
			Cause: "This store may have lost acknowledged transactions, since its machine went down without a clean " +
				"stop and `sync` is not \"always\", " +
				"its files were damaged and set aside, or it is another store than the record expects here.",
			Action: "If the other node is in sync, this one fetches everything from it by itself. If not, bring the " +
				"other node back, or mend " +
				"this one's files (`damaged-…` in its data directory, see docs/explanation/maintenance.md). Only if neither " +
				"can be done, restore a backup, or go on without what is lost: stop the node whose log ends first, and " +
				"`lockstep failover --force` on the other one.",
		},
	}
}

func ofTheCoordinator() []Definition {
	return []Definition{
		{
			Kind: CoordinatorLost, Severity: Critical, Scope: OfNode, After: 2 * time.Second,
			Cause: "This node does not reach the coordinator: no role can change, and if the other node is lost or " +
				"restarted, too, writes stop.",
			Action: "Look at the coordinator's processes and at the network to them. A pair that serves goes on " +
				"serving meanwhile: restart neither node until the coordinator is back.",
		},
		{
			Kind: CoordinatorTrouble, Severity: Critical, Scope: OfNode, After: settle,
			Cause: "The coordinator answers but does not do what it is asked for: no role can change, and if the " +
				"standby is lost or restarted, writes stop, since the record can neither release it nor name it anew.",
			Action: "The details are its own words: give it space, or this node the right to write its key. Restart " +
				"neither node before; a node that was restarted comes back in sync by itself afterwards.",
		},
		{
			Kind: VoterMissing, Severity: Warning, Scope: OfPair, After: 10 * time.Second,
			Cause: "One of the three voters does not answer. The quorum stands, but the next loss of a voter takes " +
				"the coordinator away.",
			Action: "Start the voter, or replace it: `lockstep pair replace`.",
		},
		{
			Kind: VoterBehind, Severity: Warning, Scope: OfPair, After: 30 * time.Second,
			Cause: "One of the three voters lags behind the others, or its disk does not answer: if another one is lost, " +
				"changes of role wait for it.",
			Action: "Look at disk and network of that voter. It catches up by itself; if it does not, replace it: " +
				"`lockstep pair replace`.",
		},
		{
			Kind: VoterPutBack, Severity: Critical, Scope: OfPair,
			Cause: "A voter's disk was put back to an older state: it has forgotten votes or records that it had " +
				"given, and takes no part any more.",
			Action: "Stop it, move the voter's directory away, start it and `lockstep pair replace` it. Of a node " +
				"that directory is " +
				"`coordinator.raft.dir`, by default `raft` in the data directory: leave the store beside it where it is.",
		},
		{
			Kind: VoterWiped, Severity: Warning, Scope: OfPair, After: 10 * time.Second,
			Cause: "At the address of one of the three voters another voter answers, or one that is in no cluster: " +
				"its directory was lost or replaced.",
			Action: "Replace the old voter by the new one: `lockstep pair replace`.",
		},
	}
}

func ofOperations() []Definition {
	return []Definition{
		{
			Kind: SwitchoverFailed, Severity: Warning, Scope: OfNode,
			Cause: "The last switchover that this node was asked for was not done; the role is where it was.",
			Action: "The details say why. Mend that and ask again; the condition ends with the next switchover that " +
				"succeeds, or after ten minutes.",
		},
		{
			Kind: SwitchoverStuck, Severity: Warning, Scope: OfPair, After: 15 * time.Second,
			Cause: "A switchover was asked for and has neither been done nor been refused for longer than it may take.",
			Action: "Look whether the standby is in sync and the coordinator reachable. The active gives up by " +
				"itself and goes on.",
		},
		{
			Kind: PlanFailed, Severity: Warning, Scope: OfPair,
			Cause: "The last rolling operation (resize, compact or restart) has failed. Both nodes go on as they are.",
			Action: "`lockstep store plan` says at which step and why. Mend that and start it again; the condition " +
				"ends with the next plan.",
		},
		{
			Kind: PlanStuck, Severity: Warning, Scope: OfPair,
			Cause: "A rolling operation waits or repeats the same step for long.",
			Action: "The details say what it waits for. It goes on by itself as soon as it can; `lockstep store plan " +
				"--cancel` ends it.",
		},
	}
}

func ofJobs() []Definition {
	return []Definition{
		{
			Kind: JobFailed, Severity: Warning, Scope: OfPair,
			Cause: "The last run of a scheduled job has failed.",
			Action: "`lockstep job history` has the runs and their reasons. Run it again with `lockstep job run`; " +
				"the condition ends with a run that succeeds.",
		},
		{
			Kind: JobStuck, Severity: Warning, Scope: OfPair,
			Cause: "A run of a scheduled job has not ended although its next run is due.",
			Action: "Look with `lockstep status` at what it does now. If it hangs, restart the node that it runs on: " +
				"the run is begun anew.",
		},
		{
			Kind: BackupMissing, Severity: Critical, Scope: OfPair,
			Cause: "A job makes backups, and none of its runs that are remembered has succeeded: there is nothing " +
				"to restore from.",
			Action: "See with `lockstep job history` why its runs fail: the directory has no space or cannot be written, " +
				"or the S3 server of the bucket does not answer or refuses. Then make one now: `lockstep job run` or " +
				"`lockstep store backup`.",
		},
		{
			Kind: BackupOld, Severity: Warning, Scope: OfPair,
			Cause: "The last good backup is older than two intervals of the job that makes backups.",
			Action: "See with `lockstep job history` why its last runs failed or were not done: the directory has no space " +
				"or cannot be written, or the S3 server of the bucket does not answer or refuses. Then make one now: " +
				"`lockstep job run` or `lockstep store backup`.",
		},
		{
			Kind: ArchiveGap, Severity: Critical, Scope: OfNode,
			Cause: "The archive of this node's log has a gap: a restore to a point in time cannot pass it.",
			Action: "Make a backup of this node now; points in time after it can be restored again. Give the archive " +
				"more space, mend the way to its S3 server, or raise `wal.archive-hold-bytes`.",
		},
		{
			Kind: ArchiveLag, Severity: Warning, Scope: OfNode, After: time.Minute,
			Cause: "This node's log is not archived at present; it is held back until `wal.archive-hold-bytes`, and " +
				"beyond that the archive gets a gap.",
			Action: "The details say what failed. Of a directory: give it space, or make it writable again. Of a bucket: " +
				"see that its S3 server answers, and that the node's key may list, get, put and delete there.",
		},
	}
}

func ofTheDisk() []Definition {
	return []Definition{
		{
			Kind: DiskLow, Severity: Critical, Scope: OfNode,
			Cause: "The filesystem of this node's store has less space than `disk.low-watermark`, free pages of the store " +
				"included, or less than half of it without them.",
			Action: "The details say what helps. Free or add space on that machine, or use `lockstep store compact` or " +
				"`lockstep store shrink` to give pages back. While half of the watermark is free, it is enough that consumers " +
				"acknowledge what waits, or to purge.",
		},
		{
			Kind: PublishesRefused, Severity: Critical, Scope: OfPair,
			Cause: "Publishes are refused, because the active's disk is below `disk.low-watermark`. Consumers go " +
				"on.",
			Action: "Free or add space on the active's machine. If the standby has more room, `lockstep switchover` " +
				"lets publishers go on at once.",
		},
		{
			Kind: ReplicationHeld, Severity: Critical, Scope: OfNode,
			Cause: "This standby takes nothing in, because its disk is nearly full: it has left the active before " +
				"the disk is full, and keeps what it has. " +
				"The active goes on alone, or refuses writes with `min-in-sync: 2`.",
			Action: "Free or add space on that machine; the node follows again by itself when there is room.",
		},
		{
			Kind: DiskStalled, Severity: Critical, Scope: OfNode, // disk.stall-timeout is the hold time
			Cause: "A write or sync of this node's log has not come back for longer than `disk.stall-timeout`: " +
				"publishes wait for it, and in a pair the node has stopped its heartbeats.",
			Action: "Look at the disk and at the machine's kernel log. The other node takes over, if it is in sync; " +
				"a node that stands alone goes on when the disk does.",
		},
		{
			Kind: SyncSlow, Severity: Warning, Scope: OfNode, After: 10 * time.Second,
			Cause:  "Syncs of this node's log take long: every acknowledgement waits for them.",
			Action: "Look for other load on that disk (iostat), a disk that fails, or a write cache that was turned off.",
		},
		{
			Kind: SyncOff, Severity: Info, Scope: OfNode,
			Cause: "`sync` is not \"always\": what is acknowledged is in the memory of both machines and reaches " +
				"their disks a little later.",
			Action: "Nothing, if that was meant: one node can be lost without a loss, but not the power of both at " +
				"once. Otherwise set `sync: always`.",
		},
		{
			Kind: PageCacheOnly, Severity: Info, Scope: OfNode,
			Cause: "The filesystem does not let this node write past the page cache (O_DIRECT), which " +
				"`memory.page-cache` asks for: writes go through the cache.",
			Action: "Nothing has to be done: it is safe, and only slower. Use ext4 or xfs, or set " +
				"`memory.page-cache: keep`.",
		},
	}
}

func ofTheContent() []Definition {
	return []Definition{
		{
			Kind: DamagedMessages, Severity: Critical, Scope: OfNode,
			Cause: "Messages on this node cannot be read.",
			Action: "They are fetched from the other node by itself. `lockstep verify` lists them; `lockstep queue " +
				"drop-damaged` gives up those that both nodes have lost.",
		},
		{
			Kind: DamagedIndex, Severity: Critical, Scope: OfNode,
			Cause: "This node's page file is damaged in a way that only a copy of the other node's store can mend; " +
				"until then nothing can be written to it.",
			Action: "Bring the other node into sync: the store is replaced by itself then. Look at the disk.",
		},
		{
			Kind: DamagedLog, Severity: Warning, Scope: OfNode,
			Cause:  "A part of this node's log cannot be read. What it held is in the pages.",
			Action: "It is given up by itself when two checkpoints hold it. Look at the disk.",
		},
		{
			Kind: DigestsDiffer, Severity: Critical, Scope: OfPair, Alarm: "differ",
			Cause: "The two nodes do not hold the same.",
			Action: "Find out which one is right before you switch over; `lockstep verify --deep` compares them " +
				"again. This is a bug: please report it.",
		},
		{
			Kind: PreparedOld, Severity: Warning, Scope: OfPair,
			Cause: "A transaction was prepared more than an hour ago, and its coordinator has not decided over it. It " +
				"holds messages back from consumers, and room in queues.",
			Action: "Start the coordinator again: it finds what it has to decide. If it never comes back, find out what " +
				"was decided elsewhere, and do the same with `lockstep txn commit` or `lockstep txn rollback`; " +
				"`lockstep txn list` shows all of them.",
		},
		{
			Kind: DeadLettersWait, Severity: Warning, Scope: OfPair, After: 10 * time.Second,
			Cause: "Messages of a queue are to be moved to its dead-letter queue, which has no room for them. They stay " +
				"where they are and no consumer gets them; a queue with `overflow: dead-letter-head` refuses publishes in " +
				"the end.",
			Action: "The details name both queues. Consume from the dead-letter queue, purge it, or raise its limits: " +
				"what waits is moved within a second. For messages that are larger than its `max_bytes`, raise that.",
		},
	}
}

func ofTheMachine() []Definition {
	return []Definition{
		{
			Kind: MemoryOverBudget, Severity: Warning, Scope: OfNode, After: 30 * time.Second,
			Cause: "The process has more memory in use than `memory.budget` allows.",
			Action: "Raise `memory.budget`, or have fewer and smaller messages under way: `limits.pending-bytes`, " +
				"`limits.outstanding`, fewer consumers.",
		},
		{
			Kind: CertificateExpires, Severity: Warning, Scope: OfNode,
			Cause: "A certificate that this node uses, or that the witness shows it, ends within 14 days.",
			Action: "Replace the file, on the witness if it is its certificate: it is read again by itself. " +
				"`lockstep cert show` says what a file holds.",
		},
		{
			Kind: CertificateExpired, Severity: Critical, Scope: OfNode,
			Cause: "A certificate that this node uses, or that the witness has shown it, has ended: new connections with " +
				"it are refused.",
			Action: "Replace the file, on the witness if it is its certificate: it is read again by itself.",
		},
		{
			Kind: SecretRefused, Severity: Warning, Scope: OfNode,
			Cause: "A file with a certificate, key, authority or secret has changed and cannot be used: the node goes " +
				"on with what it held before.",
			Action: "Mend the file: the node reads it again by itself. `lockstep cert show` says what a file holds.",
		},
		{
			Kind: CallersNotLetIn, Severity: Info, Scope: OfNode,
			Cause: "More than 100 calls within a minute showed a token or certificate that is wrong or over: a client " +
				"with an old token, or someone who tries.",
			Action: "Find the address in the log and give that client a new token, or keep it away. Clients that are let " +
				"in do not suffer.",
		},
		{
			Kind: IssuerKeysMissing, Severity: Warning, Scope: OfNode,
			Cause: "The keys of the issuer of JWTs (auth.jwt) cannot be had. Tokens that are signed with a key that the " +
				"node knows are believed as before; others cannot be checked, and their clients wait.",
			Action: "Look at the issuer's server and the way to it, or at the file auth.jwt.jwks-file.",
		},
		{
			Kind: AuditTrouble, Severity: Warning, Scope: OfNode,
			Cause: "The file of the audit cannot be written, or its disk is too slow: records of administrative calls " +
				"and of refusals are lost. The calls are carried out all the same.",
			Action: "Make room on the disk of `audit.file`, or mend it. `lockstep audit tail` shows the newest " +
				"records, and `lockstep_audit_records_lost_total` how many are not in the file.",
		},
		{
			Kind: AccessOpen, Severity: Warning, Scope: OfNode,
			Cause: "Other machines reach this node, and everybody who does may do everything: there was never a rule of who " +
				"may do what, and `access.mode` is `open`.",
			Action: "Say who may do what: docs/explanation/security.md. The first rule, or `access.mode: deny` on both " +
				"nodes, ends the condition.",
		},
		{
			Kind: ClocksApart, Severity: Warning, Scope: OfPair,
			Cause: "The clocks of the two nodes differ by more than two seconds. No acknowledgement depends on that, " +
				"but expiry, schedules and times in logs do.",
			Action: "Look at the time synchronisation (chrony, ntpd) of both machines.",
		},
	}
}
