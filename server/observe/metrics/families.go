// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"time"

	"github.com/lockstep-mq/lockstep/failover"
	"github.com/lockstep-mq/lockstep/replication"
	"github.com/lockstep-mq/lockstep/server/observe/conditions"
	"github.com/lockstep-mq/lockstep/server/ops/maintenance"
	"github.com/lockstep-mq/lockstep/store/throttle"
)

func ofThePair() []family {
	return []family{
		gaugeOf("condition", "", "1 while the condition is the case on this node, in its pair or, as far as this "+
			"node knows, on the other one; "+
			"docs/how-to/respond-to-conditions.md describes each.", []string{"condition", "severity"},
			func(s *snapshot, put putFunc) {
				for _, d := range conditions.All() {
					put(boolValue(s.isSo(d.Kind)), string(d.Kind), d.Severity.String())
				}
			}),
		gauge("alarms", "Conditions that are a warning or critical; lockstep_condition says which ones they are.",
			func(s *snapshot) float64 {
				n := 0
				for i := range s.node.Conditions {
					if s.node.Conditions[i].Definition.Severity >= conditions.Warning {
						n++
					}
				}
				return float64(n)
			}),
		gaugeOf("role", "", "1 for the role that the node has now.", []string{"role"}, func(s *snapshot, put putFunc) {
			for r := failover.RoleRecovering; r <= failover.RoleFenced; r++ {
				put(boolValue(r == s.node.Pair.Role), r.String())
			}
		}),
		gauge("term", "Term of the pair's record that the node knows.", func(s *snapshot) float64 {
			if s.node.Pair.Record == nil {
				return 0
			}
			return float64(s.node.Pair.Record.Term)
		}),
		gauge("in_sync_nodes", "Nodes that hold every committed transaction, by the record that the node knows.",
			func(s *snapshot) float64 {
				if s.node.Pair.Record == nil {
					return 0
				}
				return float64(len(s.node.Pair.Record.InSync))
			}),
		gauge("coordinator_reachable", "1 if the coordinator answered the last time that it was asked.",
			func(s *snapshot) float64 {
				return boolValue(s.node.Pair.CoordinatorReachable)
			}),
		gaugeOf("voter_up", whenRaft, "1 for each voter that answers as the one that it should be.",
			[]string{"voter", "kind"},
			func(s *snapshot, put putFunc) {
				for _, v := range s.more.Voters {
					put(boolValue(v.Up), v.Address, v.Kind)
				}
			}),
		gaugeOf("voter_lag_entries", whenRaft, "Entries of its log that a voter which answers has behind the one "+
			"that has the most.",
			[]string{"voter", "kind"}, func(s *snapshot, put putFunc) {
				for _, v := range s.more.Voters {
					if v.Up {
						put(float64(v.Behind), v.Address, v.Kind)
					}
				}
			}),
	}
}

func ofTheStandby() []family {
	lag := func(name, help string, read func(p *replication.PrimaryStatus, st *replication.StandbyStatus) float64) family {
		return gaugeOf(name, whenStandby, help, nil, func(s *snapshot, put putFunc) {
			if p := s.node.Primary; p != nil && p.Standby != nil {
				put(read(p, p.Standby))
			}
		})
	}
	return []family{
		gauge("standby_connected", "1 on the active while a standby is connected.", func(s *snapshot) float64 {
			return boolValue(s.node.Primary != nil && s.node.Primary.Standby != nil)
		}),
		gauge("standby_lag_records", "Records that the active has and its standby has not yet; 0 on a node that is "+
			"not active.",
			func(s *snapshot) float64 {
				if p := s.node.Primary; p != nil && p.Standby != nil && p.End.LSN > p.Standby.Durable.LSN {
					return float64(p.End.LSN - p.Standby.Durable.LSN)
				}
				return 0
			}),
		lag("standby_lag_bytes", "Log that the standby has not yet; told by the mean size of the records if it is "+
			"far behind.",
			func(_ *replication.PrimaryStatus, st *replication.StandbyStatus) float64 { return float64(st.LagBytes) }),
		lag("standby_lag_seconds", "Age of the oldest record that the standby has not yet, to the second; 600 at most.",
			func(_ *replication.PrimaryStatus, st *replication.StandbyStatus) float64 { return st.LagTime.Seconds() }),
		lag("standby_apply_lag_records", "Records that are committed and that the standby has not applied yet.",
			func(p *replication.PrimaryStatus, st *replication.StandbyStatus) float64 {
				return float64(max(p.CommitLSN, st.AppliedLSN) - st.AppliedLSN)
			}),
		lag("standby_in_flight_bytes", "Log that was sent to the standby and is not acknowledged.",
			func(_ *replication.PrimaryStatus, st *replication.StandbyStatus) float64 {
				return float64(st.InFlightBytes)
			}),
	}
}

// ofTheFollower is the metrics of the standby, which are exported even while the active is unreachable.
func ofTheFollower() []family {
	return []family{
		gaugeOf("follower_lag_records", whenFollows, "Records that the active had committed, by what it told last, and "+
			"that this standby has not applied.", nil, func(s *snapshot, put putFunc) {
			if f := s.node.Follower; f != nil {
				put(float64(max(f.ActiveCommitLSN, f.AppliedLSN) - f.AppliedLSN))
			}
		}),
		gaugeOf("snapshot_received_bytes", whenCopies, "How much of the snapshot of the active is here.", nil,
			func(s *snapshot, put putFunc) {
				if f := s.node.Follower; f != nil && f.SnapshotTotalBytes > 0 {
					put(float64(f.SnapshotBytes))
				}
			}),
		gaugeOf("snapshot_size_bytes", whenCopies, "How much that snapshot is in all.", nil,
			func(s *snapshot, put putFunc) {
				if f := s.node.Follower; f != nil && f.SnapshotTotalBytes > 0 {
					put(float64(f.SnapshotTotalBytes))
				}
			}),
	}
}

func ofMessages() []family {
	return []family{
		counter("messages_published_total", "Messages that were published and applied on this node, since it was started.",
			func(s *snapshot) float64 { return float64(s.store.Counts.Published) }),
		counter("published_bytes_total", "Their bytes, as they are stored.",
			func(s *snapshot) float64 { return float64(s.store.Counts.PublishedBytes) }),
		counter("messages_acknowledged_total", "Acknowledgements of messages that were applied on this node since it "+
			"was started: one for each subscription.",
			func(s *snapshot) float64 { return float64(s.store.Counts.Acknowledged) }),
		counter("messages_released_total", "Messages that consumers gave back or left behind, applied on this node "+
			"since it was started.",
			func(s *snapshot) float64 { return float64(s.store.Counts.Released) }),
		counter("messages_moved_total", "Messages that were moved to a dead-letter queue, or back, applied on this node "+
			"since it was started.",
			func(s *snapshot) float64 { return float64(s.store.Counts.Moved) }),
		counter("messages_dropped_total", "Messages that no consumer could deal with, and that are gone because their "+
			"queue has no dead-letter queue, applied on this node since it was started.",
			func(s *snapshot) float64 { return float64(s.store.Counts.Dropped) }),
		counter("messages_overflowed_total", "Messages that were dropped from the head of a queue because it was full and "+
			"has the overflow drop-head, applied on this node since it was started.",
			func(s *snapshot) float64 { return float64(s.store.Counts.Overflowed) }),
		counter("messages_expired_total", "Messages whose time was over, and that were not moved to a dead-letter queue, "+
			"applied on this node since it was started.",
			func(s *snapshot) float64 { return float64(s.store.Counts.Expired) }),
		counter("messages_delivered_total", "Messages that this node has handed to consumers since it was started, "+
			"redelivered ones among them.",
			func(s *snapshot) float64 { return float64(s.more.Delivered) }),
		counter("delivered_bytes_total", "Their bytes.",
			func(s *snapshot) float64 { return float64(s.more.DeliveredBytes) }),
		counter("messages_redelivered_total", "Messages that were handed out again, because they were given back or "+
			"their consumer was lost.",
			func(s *snapshot) float64 { return float64(s.more.Redelivered) }),
		counter("messages_filtered_total", "Messages that did not match the filter of a subscription, and that this node "+
			"has acknowledged for it instead.",
			func(s *snapshot) float64 { return float64(s.more.Filtered) }),
		counter("transactions_total", "Transactions that were applied on this node since it was started.",
			func(s *snapshot) float64 { return float64(s.store.Counts.Transactions) }),
		counter("transactions_refused_total", "Transactions that were committed and changed nothing, because a limit "+
			"or a check refused them.",
			func(s *snapshot) float64 { return float64(s.store.Counts.Refused) }),
		gauge("messages", "Messages that some subscription still wants.",
			func(s *snapshot) float64 { return float64(s.store.Messages) }),
		gauge("messages_delayed", "Of those, the ones that are not yet to be delivered.",
			func(s *snapshot) float64 { return float64(s.store.Delayed) }),
		gauge("prepared_transactions", "Prepared transactions that wait for a decision.",
			func(s *snapshot) float64 { return float64(s.more.Prepared) }),
		gauge("message_bytes", "Bytes of the messages that some subscription still wants.",
			func(s *snapshot) float64 { return float64(s.store.MessageBytes) }),
		gauge("memory_message_bytes", "Messages in memory that are not yet in pages.",
			func(s *snapshot) float64 { return float64(s.store.TailBytes) }),
		gauge("queues", "Queues.", func(s *snapshot) float64 { return float64(s.store.Queues) }),
		gauge("consumers", "Consumers that are attached to this node.",
			func(s *snapshot) float64 { return float64(s.more.Consumers) }),
		gauge("publishes_refused", "1 while this node is the active and refuses publishes because its disk is nearly "+
			"full.", func(s *snapshot) float64 {
			return boolValue(s.isSo(conditions.PublishesRefused))
		}),
	}
}

func ofQueues() []family {
	of := func(name, kind, help string, read func(q *queueSnapshot) (float64, bool)) family {
		return family{
			Metric{Name: name, Type: kind, Help: help, Labels: []string{"queue"}, When: whenQueues},
			func(s *snapshot, put putFunc) {
				for i := range s.queues {
					if v, ok := read(&s.queues[i]); ok {
						put(v, s.queues[i].Name)
					}
				}
			},
		}
	}
	subscriptions := func(name, kind, help string, read func(q *queueSnapshot, at int) float64) family {
		return family{Metric{
			Name: name, Type: kind, Help: help, Labels: []string{"queue", "subscription"},
			When: whenQueues + ", and as many of its subscriptions",
		}, func(s *snapshot, put putFunc) {
			for i := range s.queues {
				q := &s.queues[i]
				for at := range q.Subscriptions {
					put(read(q, at), q.Name, q.Subscriptions[at].Name)
				}
			}
		}}
	}
	return []family{
		of("queue_messages", Gauge, "Messages of the queue that some subscription still wants.",
			func(q *queueSnapshot) (float64, bool) { return float64(q.Messages), true }),
		of("queue_bytes", Gauge, "Their bytes.",
			func(q *queueSnapshot) (float64, bool) { return float64(q.Bytes), true }),
		of("queue_oldest_message_age_seconds", Gauge, "Age of the oldest of them; 0 if there is none.",
			func(q *queueSnapshot) (float64, bool) { return q.age.Seconds(), q.ageKnown }),
		of("queue_messages_published_total", Counter, "Messages that were ever published to the queue.",
			func(q *queueSnapshot) (float64, bool) { return float64(q.NextSequence - 1), true }),
		subscriptions("subscription_backlog_messages", Gauge, "Messages that the subscription has not acknowledged.",
			func(q *queueSnapshot, at int) float64 { return float64(q.Subscriptions[at].Backlog) }),
		subscriptions("subscription_messages_settled_total", Counter,
			"Messages that the subscription has acknowledged, or that were purged.",
			func(q *queueSnapshot, at int) float64 {
				sub := &q.Subscriptions[at]
				return float64(q.NextSequence - min(sub.Start, q.NextSequence) - min(sub.Backlog,
					q.NextSequence-min(sub.Start, q.NextSequence)))
			}),
	}
}

func ofTheStore() []family {
	return []family{
		gauge("log_end_lsn", "LSN of the last record in the log.",
			func(s *snapshot) float64 { return float64(s.store.End.LSN) }),
		gauge("log_durable_lsn", "LSN of the last record that is durable on this node.",
			func(s *snapshot) float64 { return float64(s.store.Durable.LSN) }),
		gauge("applied_lsn", "LSN of the last record that was applied.",
			func(s *snapshot) float64 { return float64(s.store.Applied.LSN) }),
		counterOf("store_events_total", "What the store told since the node was started: package store/events lists the "+
			"kinds.", []string{"event"}, func(s *snapshot, put putFunc) {
			for name, n := range s.more.StoreEvents {
				put(float64(n), name)
			}
		}),
		counter("checkpoints_total", "Checkpoints that page.db ever had.",
			func(s *snapshot) float64 { return float64(s.store.Checkpoint) }),
		gauge("checkpoint_lsn", "LSN that the last checkpoint holds.",
			func(s *snapshot) float64 { return float64(s.store.CheckpointLSN) }),
		gauge("checkpoint_timestamp_seconds", "When the last checkpoint was made, in Unix time; 0 if there was none.",
			func(s *snapshot) float64 {
				return unix(s.store.CheckpointAt)
			}),
		gauge("log_bytes", "Log on disk.", func(s *snapshot) float64 { return float64(s.store.LogBytes) }),
		gauge("page_size_bytes", "Page size of page.db.",
			func(s *snapshot) float64 { return float64(s.store.PageSize) }),
		gauge("pages", "Pages of page.db.", func(s *snapshot) float64 { return float64(s.store.Pages) }),
		gauge("pages_used", "Pages of page.db that hold something.",
			func(s *snapshot) float64 { return float64(s.store.PagesUsed) }),
		gaugeOf("archive_lag_records", whenArchive, "Records that are applied and not archived yet.", nil,
			func(s *snapshot, put putFunc) {
				if a := s.more.Archive; a != nil {
					put(float64(a.Behind))
				}
			}),
		gaugeOf("archive_lag_seconds", whenArchive, "Age of the last transaction that is archived, while later ones are "+
			"not; 0 while there are none, and the time since the start if none is archived.", nil,
			func(s *snapshot, put putFunc) {
				a := s.more.Archive
				switch {
				case a == nil:
				case a.Behind == 0:
					put(0)
				case a.LastTime.IsZero():
					put(max(time.Since(s.node.StartedAt), 0).Seconds())
				default:
					put(max(time.Since(a.LastTime), 0).Seconds())
				}
			}),
		gaugeOf("archive_lsn", whenArchive, "LSN of the last record that is archived.", nil,
			func(s *snapshot, put putFunc) {
				if a := s.more.Archive; a != nil {
					put(float64(a.Last.LSN))
				}
			}),
		gaugeOf("archive_failing", whenArchive, "1 while archiving does not go on.", nil,
			func(s *snapshot, put putFunc) {
				if a := s.more.Archive; a != nil {
					put(boolValue(a.Err != nil))
				}
			}),
	}
}

func ofTheDisk() []family {
	return []family{
		gauge("disk_free_bytes", "What may still be written to the filesystem of the store.",
			func(s *snapshot) float64 { return float64(s.store.DiskFree) }),
		gauge("disk_size_bytes", "Size of the filesystem of the store.",
			func(s *snapshot) float64 { return float64(s.store.DiskTotal) }),
		gauge("disk_low_watermark_bytes", "disk.low-watermark.",
			func(s *snapshot) float64 { return float64(s.node.DiskLowWatermark) }),
		gauge("disk_low", "1 while less than disk.low-watermark is free; publishes are refused then on the active.",
			func(s *snapshot) float64 {
				return boolValue(s.more.DiskLow)
			}),
	}
}

func ofDamage() []family {
	return []family{
		gauge("nodes_differ", "1 when the last comparison found that the two nodes do not hold the same.",
			func(s *snapshot) float64 {
				return boolValue(s.isSo(conditions.DigestsDiffer))
			}),
		gauge("damaged_messages", "Messages that are wanted and cannot be read on this node.",
			func(s *snapshot) float64 { return float64(s.damage.DamagedMessages) }),
		gauge("lost_messages", "Of those, the ones that are damaged on both nodes.",
			func(s *snapshot) float64 { return float64(s.damage.LostMessages) }),
		gauge("index_damaged", "1 when the store has to be replaced by a copy of the other node's.",
			func(s *snapshot) float64 { return boolValue(s.damage.Index != nil) }),
		counter("scrubbed_pages_total", "Pages that the scrub has read.",
			func(s *snapshot) float64 { return float64(s.damage.ScrubbedPages) }),
		counter("scrubbed_log_bytes_total", "Log that the scrub has read.",
			func(s *snapshot) float64 { return float64(s.damage.ScrubbedLogBytes) }),
		counter("damaged_pages_found_total", "Damaged stretches of pages that were found.",
			func(s *snapshot) float64 { return float64(s.damage.FoundPages) }),
		counter("damaged_log_found_total", "Damaged places in the log that were found.",
			func(s *snapshot) float64 { return float64(s.damage.FoundLog) }),
		counter("repaired_pages_total", "Damaged stretches of pages that were made good.",
			func(s *snapshot) float64 { return float64(s.damage.RepairedPages) }),
		counter("repaired_messages_total", "Messages that came from the other node for that.",
			func(s *snapshot) float64 { return float64(s.damage.RepairedMessages) }),
		counter("repaired_log_total", "Damaged places in the log that were given up because checkpoints hold what "+
			"was there.",
			func(s *snapshot) float64 { return float64(s.damage.RepairedLog) }),
	}
}

func ofWork() []family {
	job := func(name, help string, read func(j *maintenance.JobInfo) (float64, bool)) family {
		return gaugeOf(name, whenJobs, help, []string{"job", "kind"}, func(s *snapshot, put putFunc) {
			for i := range s.more.Jobs {
				j := &s.more.Jobs[i]
				if v, ok := read(j); ok {
					put(v, j.Name, j.Kind)
				}
			}
		})
	}
	return []family{
		gaugeOf("maintenance_progress_ratio", whenWork,
			"How much of the maintenance operation under way is done, 0 to 1.", []string{"operation"},
			func(s *snapshot, put putFunc) {
				if m := s.node.Maintenance; m != nil && m.Progress.TotalBytes > 0 {
					put(float64(m.Progress.Bytes)/float64(m.Progress.TotalBytes), m.Operation)
				}
			}),
		job("job_running", "1 while a run of the job is under way.", func(j *maintenance.JobInfo) (float64, bool) {
			return boolValue(len(j.History) > 0 && j.History[0].Outcome == maintenance.RunRunning), true
		}),
		job("job_failed", "1 if the last run of the job has failed.", func(j *maintenance.JobInfo) (float64, bool) {
			return boolValue(len(j.History) > 0 && j.History[0].Outcome == maintenance.RunFailed), true
		}),
		job("job_last_run_timestamp_seconds", "When the last run of the job was started, in Unix time; 0 if there was none.",
			func(j *maintenance.JobInfo) (float64, bool) {
				if len(j.History) == 0 {
					return 0, true
				}
				return unix(j.History[0].StartedAt), true
			}),
		job("job_last_success_timestamp_seconds",
			"When the last run of the job that succeeded was started, in Unix time; 0 if none is remembered.",
			func(j *maintenance.JobInfo) (float64, bool) {
				at, _ := j.LastGood()
				return unix(at), true
			}),
		gaugeOf("backup_last_success_timestamp_seconds", whenBackups,
			"When the last good backup of a job was begun, in Unix time; 0 if none is remembered.",
			nil, func(s *snapshot, put putFunc) {
				var last time.Time
				makes := false
				for i := range s.more.Jobs {
					if j := &s.more.Jobs[i]; j.Kind == maintenance.JobBackup {
						makes = true
						if at, ok := j.LastGood(); ok && at.After(last) {
							last = at
						}
					}
				}
				if makes {
					put(unix(last))
				}
			}),
	}
}

func ofTheProcess() []family {
	return []family{
		gauge("start_time_seconds", "When the process started, in Unix time.",
			func(s *snapshot) float64 { return unix(s.node.StartedAt) }),
		gaugeOf("build_info", "", "1, with the version of the software.", []string{"version"},
			func(s *snapshot, put putFunc) { put(1, s.node.Version) }),
		gauge("connections", "Connections to the node's port: of clients, of the command line, and of the other node.",
			func(s *snapshot) float64 {
				return float64(s.more.Connections.Open)
			}),
		gauge("received_ahead_bytes", "What clients have sent that no handler is done with; above an eighth of "+
			"memory.budget, those that hold most are read more slowly, and closed if they hold it for long.",
			func(s *snapshot) float64 { return float64(s.more.Connections.AheadBytes) }),
		counter("connections_accepted_total", "Connections that were ever accepted.",
			func(s *snapshot) float64 { return float64(s.more.Connections.Accepted) }),
		counter("amqp_defects_total", "AMQP connections that were closed because of a defect of this program; the log has "+
			"each of them.",
			func(s *snapshot) float64 { return float64(s.more.AMQPDefects) }),
		counter("audit_records_total", "Records of administrative calls and of refusals that were made.",
			func(s *snapshot) float64 { return float64(s.more.Audit.Records) }),
		counter("audit_records_lost_total", "Those of them that could not be written.",
			func(s *snapshot) float64 { return float64(s.more.Audit.Lost) }),
		counterOf("connections_refused_total", "Connections that were not let in (full, address-full, too-many, "+
			"handshakes) or were closed before a call of them was let in (silent, strangers, displaced), because they flood "+
			"(flood), because they have sent far more than they let the node carry out (hoarding), or because the certificate "+
			"of their client is over (expired).",
			[]string{"reason"}, func(s *snapshot, put putFunc) {
				for reason, n := range s.more.Connections.Ended {
					put(float64(n), reason)
				}
			}),
		gaugeOf("certificate_expiry_timestamp_seconds", whenTLS,
			"When a certificate that the node uses ends, in Unix time.", []string{"file"},
			func(s *snapshot, put putFunc) {
				for _, c := range s.more.Certificates {
					put(unix(c.Ends), c.File)
				}
			}),
		gaugeOf("certificate_expires_in_seconds", whenTLS,
			"Seconds until a certificate that the node uses (of: node, etcd, raft, metrics) ends; negative once it has.",
			[]string{"of", "file"},
			func(s *snapshot, put putFunc) {
				for _, c := range s.more.Certificates {
					put(time.Until(c.Ends).Seconds(), c.Of, c.File)
				}
			}),
		counterOf("callers_not_let_in_total", "Calls that showed a token or certificate that is wrong or over, or that "+
			"could not be checked (limit, unavailable), by the check that failed.", []string{"check"},
			func(s *snapshot, put putFunc) {
				for check, n := range s.more.NotLetIn {
					put(float64(n), check)
				}
			}),
		traces("trace_spans_sent_total", "Spans of traces that the collector has taken.",
			func(t *Traces) uint64 { return t.Sent }),
		traces("trace_spans_lost_total", "Spans of traces that could not be sent to the collector.",
			func(t *Traces) uint64 { return t.Lost }),
		gauge("memory_budget_bytes", "memory.budget.",
			func(s *snapshot) float64 { return float64(s.more.MemoryBudget) }),
		gauge("background_share", "Share of the time that work in the background gets, from 0 to 1, as far as commits "+
			"decide it; 1 while none goes on.", func(s *snapshot) float64 { return s.more.Background.Share }),
		gaugeOf("background_reason", "", "1 for why work in the background has its share: no-work, no-commits, unknown "+
			"(what commits take without the work is not known yet), rising, undisturbed, slow-commits.", []string{"reason"},
			func(s *snapshot, put putFunc) {
				for _, r := range throttle.Reasons() {
					put(boolValue(r == s.more.Background.Reason), string(r))
				}
			}),
		gauge("commit_baseline_seconds", "What nine of ten commits do not exceed while no work disturbs them, which work "+
			"in the background is held to; 0 while unknown.",
			func(s *snapshot) float64 { return s.more.Background.Baseline.Seconds() }),
		gauge("commit_recent_seconds", "What nine of ten commits of the last tenth of a second or so did not exceed, as "+
			"work in the background knows it; 0 without commits.",
			func(s *snapshot) float64 { return s.more.Background.Latest.Seconds() }),
	}
}

// traces describes a counter exported while tracing is enabled.
func traces(name, help string, read func(t *Traces) uint64) family {
	return family{Metric{Name: name, Type: Counter, Help: help, When: whenTraces}, func(s *snapshot, put putFunc) {
		if t := s.more.Traces; t != nil {
			put(float64(read(t)))
		}
	}}
}

// unix returns the Unix time in seconds; 0 for the zero time.
func unix(t time.Time) float64 {
	if t.IsZero() {
		return 0
	}
	return float64(t.UnixMilli()) / 1000
}

func boolValue(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
