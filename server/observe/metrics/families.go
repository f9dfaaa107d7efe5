// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"time"

	"github.com/lockstep-mq/lockstep/failover"
	"github.com/lockstep-mq/lockstep/replication"
	"github.com/lockstep-mq/lockstep/server/observe/conditions"
	"github.com/lockstep-mq/lockstep/server/observe/tracing"
	"github.com/lockstep-mq/lockstep/server/ops/maintenance"
	"github.com/lockstep-mq/lockstep/store/backup"
	"github.com/lockstep-mq/lockstep/store/throttle"
)

func pairFamilies() []family {
	return []family{
		gaugeOf("condition", "", "1 while the condition is active on this node, in its pair or, as reported by the "+
			"other node, on that node; see docs/how-to/respond-to-conditions.md.", []string{"condition", "severity"},
			func(s *snapshot, put emitFunc) {
				for _, d := range conditions.All() {
					put(boolValue(s.isRaised(d.Kind)), string(d.Kind), d.Severity.String())
				}
			}),
		gauge("alarms", "Active conditions of severity warning or critical; see lockstep_condition.",
			func(s *snapshot) float64 {
				n := 0
				for i := range s.node.Conditions {
					if s.node.Conditions[i].Definition.Severity >= conditions.Warning {
						n++
					}
				}
				return float64(n)
			}),
		gaugeOf("role", "", "1 for the current role of the node.", []string{"role"}, func(s *snapshot, put emitFunc) {
			for r := failover.RoleRecovering; r <= failover.RoleFenced; r++ {
				put(boolValue(r == s.node.Pair.Role), r.String())
			}
		}),
		gauge("term", "Term of the cluster record, as known to this node.", func(s *snapshot) float64 {
			if s.node.Pair.Record == nil {
				return 0
			}
			return float64(s.node.Pair.Record.Term)
		}),
		gauge("in_sync_nodes", "Nodes in sync, from the cluster record as known to this node.",
			func(s *snapshot) float64 {
				if s.node.Pair.Record == nil {
					return 0
				}
				return float64(len(s.node.Pair.Record.InSync))
			}),
		gauge("coordinator_reachable", "1 if the coordinator responded to the last request.",
			func(s *snapshot) float64 { return boolValue(s.node.Pair.CoordinatorReachable) }),
		gaugeOf("voter_up", whenRaft, "1 for each voter that responds with the expected identity.",
			[]string{"voter", "kind"},
			func(s *snapshot, put emitFunc) {
				for _, v := range s.extra.Voters {
					put(boolValue(v.Up), v.Address, v.Kind)
				}
			}),
		gaugeOf("voter_lag_entries", whenRaft, "Raft log entries by which a responding voter lags behind the most "+
			"recent one.",
			[]string{"voter", "kind"}, func(s *snapshot, put emitFunc) {
				for _, v := range s.extra.Voters {
					if v.Up {
						put(float64(v.Behind), v.Address, v.Kind)
					}
				}
			}),
	}
}

func standbyFamilies() []family {
	lag := func(name, help string, read func(p *replication.PrimaryStatus, st *replication.StandbyStatus) float64) family {
		return gaugeOf(name, whenStandby, help, nil, func(s *snapshot, put emitFunc) {
			if p := s.node.Primary; p != nil && p.Standby != nil {
				put(read(p, p.Standby))
			}
		})
	}
	return []family{
		gauge("standby_connected", "1 on the active node while a standby is connected.",
			func(s *snapshot) float64 { return boolValue(s.node.Primary != nil && s.node.Primary.Standby != nil) }),
		gauge("standby_lag_records", "Log records not yet durable on the standby; 0 without a connected standby, and on a "+
			"node that is not active.",
			func(s *snapshot) float64 {
				if p := s.node.Primary; p != nil && p.Standby != nil && p.End.LSN > p.Standby.Durable.LSN {
					return float64(p.End.LSN - p.Standby.Durable.LSN)
				}
				return 0
			}),
		lag("standby_lag_bytes", "Log bytes not yet durable on the standby; estimated from the mean record size if it "+
			"is far behind.",
			func(_ *replication.PrimaryStatus, st *replication.StandbyStatus) float64 { return float64(st.LagBytes) }),
		lag("standby_lag_seconds", "Age of the oldest record not yet durable on the standby, in whole seconds; at "+
			"most 600.",
			func(_ *replication.PrimaryStatus, st *replication.StandbyStatus) float64 { return st.LagTime.Seconds() }),
		lag("standby_apply_lag_records", "Committed records not yet applied by the standby.",
			func(p *replication.PrimaryStatus, st *replication.StandbyStatus) float64 {
				return float64(max(p.CommitLSN, st.AppliedLSN) - st.AppliedLSN)
			}),
		lag("standby_in_flight_bytes", "Log bytes sent to the standby and not yet acknowledged.",
			func(_ *replication.PrimaryStatus, st *replication.StandbyStatus) float64 {
				return float64(st.InFlightBytes)
			}),
	}
}

// followerFamilies returns the metrics of the standby role. They are exported even while the active is unreachable.
func followerFamilies() []family {
	copied := func(name, help string, read func(f *replication.FollowerStatus) float64) family {
		return gaugeOf(name, whenCopies, help, nil, func(s *snapshot, put emitFunc) {
			if f := s.node.Follower; f != nil && f.SnapshotTotalBytes > 0 {
				put(read(f))
			}
		})
	}
	return []family{
		gaugeOf("follower_lag_records", whenFollows, "Records committed by the active node, as last reported, and not "+
			"yet applied by this standby.", nil, func(s *snapshot, put emitFunc) {
			if f := s.node.Follower; f != nil {
				put(float64(max(f.ActiveCommitLSN, f.AppliedLSN) - f.AppliedLSN))
			}
		}),
		copied("snapshot_received_bytes", "Bytes of the active node's snapshot received so far.",
			func(f *replication.FollowerStatus) float64 { return float64(f.SnapshotBytes) }),
		copied("snapshot_size_bytes", "Total size of the active node's snapshot that is being received.",
			func(f *replication.FollowerStatus) float64 { return float64(f.SnapshotTotalBytes) }),
	}
}

func messageFamilies() []family {
	return []family{
		counter("messages_published_total", "Published messages, without discarded duplicates and forwarded copies, applied "+
			"on this node since its start.",
			func(s *snapshot) float64 { return float64(s.store.Counts.Published) }),
		counter("published_bytes_total", "Stored bytes of published messages applied on this node since its start.",
			func(s *snapshot) float64 { return float64(s.store.Counts.PublishedBytes) }),
		counter("messages_acknowledged_total", "Message acknowledgements applied on this node since its start, one "+
			"for each subscription.",
			func(s *snapshot) float64 { return float64(s.store.Counts.Acknowledged) }),
		counter("messages_released_total", "Messages nacked by consumers or in transactions, or requeued because a "+
			"consumer disconnected or their acknowledgement deadline had passed, applied on this node since its start.",
			func(s *snapshot) float64 { return float64(s.store.Counts.Released) }),
		counter("messages_moved_total", "Messages moved to another queue, for example to a dead-letter queue or back, "+
			"applied on this node since its start.",
			func(s *snapshot) float64 { return float64(s.store.Counts.Moved) }),
		counter("messages_dropped_total", "Rejected or undeliverable messages discarded because their queue has no "+
			"dead-letter queue, applied on this node since its start.",
			func(s *snapshot) float64 { return float64(s.store.Counts.Dropped) }),
		counter("messages_overflowed_total", "Messages discarded from the head of a full queue with overflow "+
			"drop-head, applied on this node since its start.",
			func(s *snapshot) float64 { return float64(s.store.Counts.Overflowed) }),
		counter("messages_expired_total", "Expired messages that were not moved to a dead-letter queue, applied on "+
			"this node since its start.",
			func(s *snapshot) float64 { return float64(s.store.Counts.Expired) }),
		counter("messages_duplicate_total", "Messages discarded by a dedup window because the queue had accepted their "+
			"message IDs, applied on this node since its start.",
			func(s *snapshot) float64 { return float64(s.store.Counts.Duplicates) }),
		counter("messages_delivered_total", "Messages delivered to consumers by this node since its start, including "+
			"redeliveries.",
			func(s *snapshot) float64 { return float64(s.node.Activity.Delivered) }),
		counter("delivered_bytes_total", "Bytes of messages delivered to consumers by this node since its start.",
			func(s *snapshot) float64 { return float64(s.extra.DeliveredBytes) }),
		counter("messages_redelivered_total", "Messages redelivered by this node after a nack, a consumer disconnect or a "+
			"passed acknowledgement deadline.",
			func(s *snapshot) float64 { return float64(s.extra.Redelivered) }),
		counter("messages_ack_expired_total", "Messages requeued by this node because their acknowledgement deadline had "+
			"passed. If another consumer of an exclusive queue becomes active as a result, also the other messages in "+
			"flight to the previous one.",
			func(s *snapshot) float64 { return float64(s.extra.AckExpired) }),
		counter("messages_filtered_total", "Messages that did not match a subscription's filter and were acknowledged "+
			"by this node.",
			func(s *snapshot) float64 { return float64(s.extra.Filtered) }),
		counter("transactions_total", "Transactions applied on this node since its start.",
			func(s *snapshot) float64 { return float64(s.store.Counts.Transactions) }),
		counter("transactions_refused_total", "Committed transactions without effect, because a limit or check "+
			"rejected them.",
			func(s *snapshot) float64 { return float64(s.store.Counts.Refused) }),
		gauge("messages", "Messages not yet acknowledged by all subscriptions.",
			func(s *snapshot) float64 { return float64(s.store.Messages) }),
		gauge("messages_delayed", "Messages not yet due for delivery.",
			func(s *snapshot) float64 { return float64(s.store.Delayed) }),
		gauge("prepared_transactions", "Prepared transactions without a decision.",
			func(s *snapshot) float64 { return float64(s.extra.Prepared) }),
		gauge("message_bytes", "Bytes of messages not yet acknowledged by all subscriptions.",
			func(s *snapshot) float64 { return float64(s.store.MessageBytes) }),
		gauge("memory_message_bytes", "Bytes of messages in memory that are not yet in pages.",
			func(s *snapshot) float64 { return float64(s.store.TailBytes) }),
		gauge("queues", "Number of queues.", func(s *snapshot) float64 { return float64(s.store.Queues) }),
		gauge("schedules_failed", "Schedules with a failed last occurrence, on the active node.",
			func(s *snapshot) float64 { return float64(s.extra.SchedulesFailed) }),
		gauge("queues_paused", "Queues that are paused or have a paused subscription.",
			func(s *snapshot) float64 { return float64(s.store.QueuesPaused) }),
		gauge("consumers", "Consumers attached to this node.",
			func(s *snapshot) float64 { return float64(s.node.Activity.Consumers) }),
		gauge("publishes_refused", "1 while the active node refuses publishes because its disk is nearly full.",
			func(s *snapshot) float64 { return boolValue(s.isRaised(conditions.PublishesRefused)) }),
	}
}

func queueFamilies() []family {
	of := func(name, kind, help string, read func(q *queueSnapshot) (float64, bool)) family {
		return family{
			Metric{Name: name, Type: kind, Help: help, Labels: []string{"queue"}, When: whenQueues},
			func(s *snapshot, put emitFunc) {
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
			When: whenQueues + ", and as many subscriptions of each",
		}, func(s *snapshot, put emitFunc) {
			for i := range s.queues {
				q := &s.queues[i]
				for at := range q.Subscriptions {
					put(read(q, at), q.Name, q.Subscriptions[at].Name)
				}
			}
		}}
	}
	return []family{
		of("queue_messages", Gauge, "Messages of the queue not yet acknowledged by all subscriptions.",
			func(q *queueSnapshot) (float64, bool) { return float64(q.Messages), true }),
		of("queue_bytes", Gauge, "Bytes of messages of the queue not yet acknowledged by all subscriptions.",
			func(q *queueSnapshot) (float64, bool) { return float64(q.Bytes), true }),
		of("queue_oldest_message_age_seconds", Gauge, "Age of the oldest message of the queue; 0 if the queue is empty.",
			func(q *queueSnapshot) (float64, bool) { return q.age.Seconds(), q.ageKnown }),
		of("queue_messages_published_total", Counter, "Messages stored in the queue since its creation, including forwarded "+
			"and moved messages.",
			func(q *queueSnapshot) (float64, bool) { return float64(q.NextSequence - 1), true }),
		subscriptions("subscription_backlog_messages", Gauge, "Messages not yet acknowledged by the subscription.",
			func(q *queueSnapshot, at int) float64 { return float64(q.Subscriptions[at].Backlog) }),
		subscriptions("subscription_oldest_in_flight_age_seconds", Gauge, "Time since the delivery of the message that has "+
			"been in flight longest; 0 if none is, and on a node that is not active.",
			func(q *queueSnapshot, at int) float64 { return q.inFlight[at].Seconds() }),
		subscriptions("subscription_messages_settled_total", Counter,
			"Messages that have left the backlog of the subscription, for example by acknowledgement, expiry or purge. A "+
				"seek to an earlier position decreases the value.",
			func(q *queueSnapshot, at int) float64 {
				sub := &q.Subscriptions[at]
				return float64(q.NextSequence - min(sub.Start, q.NextSequence) - min(sub.Backlog,
					q.NextSequence-min(sub.Start, q.NextSequence)))
			}),
	}
}

func storeFamilies() []family {
	archive := func(name, help string, read func(s *snapshot, a *backup.ArchiveStatus) float64) family {
		return gaugeOf(name, whenArchive, help, nil, func(s *snapshot, put emitFunc) {
			if a := s.extra.Archive; a != nil {
				put(read(s, a))
			}
		})
	}
	return []family{
		gauge("log_end_lsn", "LSN of the last record in the log.",
			func(s *snapshot) float64 { return float64(s.store.End.LSN) }),
		gauge("log_durable_lsn", "LSN of the last record that is durable on this node.",
			func(s *snapshot) float64 { return float64(s.store.Durable.LSN) }),
		gauge("applied_lsn", "LSN of the last applied record.",
			func(s *snapshot) float64 { return float64(s.store.Applied.LSN) }),
		counterOf("store_events_total", "Store events since the start of the node; package store/events lists the "+
			"kinds.", []string{"event"}, func(s *snapshot, put emitFunc) {
			for name, n := range s.extra.StoreEvents {
				put(float64(n), name)
			}
		}),
		counter("checkpoints_total", "Number of the last checkpoint of page.db, which each checkpoint increases.",
			func(s *snapshot) float64 { return float64(s.store.Checkpoint) }),
		gauge("checkpoint_lsn", "LSN of the last checkpoint.",
			func(s *snapshot) float64 { return float64(s.store.CheckpointLSN) }),
		gauge("checkpoint_timestamp_seconds", "Unix time of the last checkpoint; 0 if none.",
			func(s *snapshot) float64 { return unix(s.store.CheckpointAt) }),
		gauge("log_bytes", "Size of the log on disk.", func(s *snapshot) float64 { return float64(s.store.LogBytes) }),
		gauge("page_size_bytes", "Page size of page.db.",
			func(s *snapshot) float64 { return float64(s.store.PageSize) }),
		gauge("pages", "Pages of page.db.", func(s *snapshot) float64 { return float64(s.store.Pages) }),
		gauge("pages_used", "Used pages of page.db.",
			func(s *snapshot) float64 { return float64(s.store.PagesUsed) }),
		archive("archive_lag_records", "Applied records not yet archived.",
			func(_ *snapshot, a *backup.ArchiveStatus) float64 { return float64(a.Behind) }),
		archive("archive_lag_seconds", "Age of the last archived transaction while later ones are not "+
			"archived; 0 if all are archived, and the time since the start if none is.",
			func(s *snapshot, a *backup.ArchiveStatus) float64 {
				switch {
				case a.Behind == 0:
					return 0
				case a.LastTime.IsZero():
					return max(time.Since(s.node.StartedAt), 0).Seconds()
				default:
					return max(time.Since(a.LastTime), 0).Seconds()
				}
			}),
		archive("archive_lsn", "LSN of the last archived record.",
			func(_ *snapshot, a *backup.ArchiveStatus) float64 { return float64(a.Last.LSN) }),
		archive("archive_failing", "1 while archiving fails.",
			func(_ *snapshot, a *backup.ArchiveStatus) float64 { return boolValue(a.Err != nil) }),
	}
}

func diskFamilies() []family {
	return []family{
		gauge("disk_free_bytes", "Free space in the filesystem of the store.",
			func(s *snapshot) float64 { return float64(s.store.DiskFree) }),
		gauge("disk_size_bytes", "Size of the filesystem of the store.",
			func(s *snapshot) float64 { return float64(s.store.DiskTotal) }),
		gauge("disk_low_watermark_bytes", "Value of disk.low-watermark.",
			func(s *snapshot) float64 { return float64(s.node.DiskLowWatermark) }),
		gauge("disk_low", "1 while the disk is nearly full, see disk.low-watermark; the active node then refuses publishes.",
			func(s *snapshot) float64 { return boolValue(s.extra.DiskLow) }),
	}
}

func corruptionFamilies() []family {
	return []family{
		gauge("nodes_differ", "1 while the two nodes or sites are known to differ (condition digests-differ).",
			func(s *snapshot) float64 { return boolValue(s.isRaised(conditions.DigestsDiffer)) }),
		gauge("corrupt_messages", "Unacknowledged messages that are corrupt on this node.",
			func(s *snapshot) float64 { return float64(s.corruption.DamagedMessages) }),
		gauge("lost_messages", "Corrupt messages without an intact copy on the other node.",
			func(s *snapshot) float64 { return float64(s.corruption.LostMessages) }),
		gauge("index_corrupt", "1 if the page file is corrupt and must be replaced (condition corrupt-page-file).",
			func(s *snapshot) float64 { return boolValue(s.corruption.Index != nil) }),
		counter("scrubbed_pages_total", "Pages read by the scrub.",
			func(s *snapshot) float64 { return float64(s.corruption.ScrubbedPages) }),
		counter("scrubbed_log_bytes_total", "Log bytes read by the scrub.",
			func(s *snapshot) float64 { return float64(s.corruption.ScrubbedLogBytes) }),
		counter("corrupt_page_ranges_total", "Corrupt page ranges found.",
			func(s *snapshot) float64 { return float64(s.corruption.FoundPages) }),
		counter("corrupt_log_ranges_total", "Corrupt parts of the log found.",
			func(s *snapshot) float64 { return float64(s.corruption.FoundLog) }),
		counter("repaired_pages_total", "Corrupt page ranges repaired.",
			func(s *snapshot) float64 { return float64(s.corruption.RepairedPages) }),
		counter("repaired_messages_total", "Messages fetched from the other node for repair.",
			func(s *snapshot) float64 { return float64(s.corruption.RepairedMessages) }),
		counter("repaired_log_total", "Corrupt parts of the log discarded because checkpoints contain their content.",
			func(s *snapshot) float64 { return float64(s.corruption.RepairedLog) }),
	}
}

func workFamilies() []family {
	job := func(name, help string, read func(j *maintenance.JobInfo) (float64, bool)) family {
		return gaugeOf(name, whenJobs, help, []string{"job", "kind"}, func(s *snapshot, put emitFunc) {
			for i := range s.extra.Jobs {
				j := &s.extra.Jobs[i]
				if v, ok := read(j); ok {
					put(v, j.Name, j.Kind)
				}
			}
		})
	}
	return []family{
		gaugeOf("maintenance_progress_ratio", whenWork,
			"Completed fraction of the current maintenance operation, 0 to 1.", []string{"operation"},
			func(s *snapshot, put emitFunc) {
				if m := s.node.Maintenance; m != nil && m.Progress.TotalBytes > 0 {
					put(float64(m.Progress.Bytes)/float64(m.Progress.TotalBytes), m.Operation)
				}
			}),
		job("job_running", "1 while the job runs.", func(j *maintenance.JobInfo) (float64, bool) {
			return boolValue(len(j.History) > 0 && j.History[0].Outcome == maintenance.RunRunning), true
		}),
		job("job_failed", "1 if the last run of the job failed.", func(j *maintenance.JobInfo) (float64, bool) {
			return boolValue(len(j.History) > 0 && j.History[0].Outcome == maintenance.RunFailed), true
		}),
		job("job_last_run_timestamp_seconds", "Unix time at which the last run of the job started; 0 if none.",
			func(j *maintenance.JobInfo) (float64, bool) {
				if len(j.History) == 0 {
					return 0, true
				}
				return unix(j.History[0].StartedAt), true
			}),
		job("job_last_success_timestamp_seconds",
			"Unix time at which the last successful run of the job started; 0 if none is recorded.",
			func(j *maintenance.JobInfo) (float64, bool) {
				at, _ := j.LastSuccess()
				return unix(at), true
			}),
		gaugeOf("backup_last_success_timestamp_seconds", whenBackups,
			"Unix time at which the last successful backup of a job started; 0 if none is recorded.",
			nil, func(s *snapshot, put emitFunc) {
				var last time.Time
				makes := false
				for i := range s.extra.Jobs {
					if j := &s.extra.Jobs[i]; j.Kind == maintenance.JobBackup {
						makes = true
						if at, ok := j.LastSuccess(); ok && at.After(last) {
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

func processFamilies() []family {
	return []family{
		gauge("start_time_seconds", "Unix time at which the process started.",
			func(s *snapshot) float64 { return unix(s.node.StartedAt) }),
		gaugeOf("build_info", "", "Always 1; the label contains the version.", []string{"version"},
			func(s *snapshot, put emitFunc) { put(1, s.node.Version) }),
		gauge("connections", "Open connections to the node's gRPC and AMQP ports: from clients, the CLI and other nodes.",
			func(s *snapshot) float64 { return float64(s.extra.Connections.Open) }),
		gauge("unprocessed_bytes", "Bytes received from clients and not yet processed. Above an eighth of "+
			"memory.budget, the largest connections are throttled, and closed if they stay large.",
			func(s *snapshot) float64 { return float64(s.extra.Connections.UnprocessedBytes) }),
		counter("connections_accepted_total", "Accepted connections.",
			func(s *snapshot) float64 { return float64(s.extra.Connections.Accepted) }),
		counter("amqp_internal_errors_total", "AMQP connections closed because of an internal error; each is logged.",
			func(s *snapshot) float64 { return float64(s.extra.AMQPDefects) }),
		counter("audit_records_total", "Audit records of administrative and denied calls.",
			func(s *snapshot) float64 { return float64(s.extra.Audit.Records) }),
		counter("audit_records_lost_total", "Audit records that could not be written.",
			func(s *snapshot) float64 { return float64(s.extra.Audit.Lost) }),
		counterOf("connections_refused_total", "Connections rejected (full, address-full, too-many, handshakes), "+
			"closed before their first authenticated call (handshake-timeout, unauthenticated, evicted), or closed "+
			"for flooding (flood), for too much unprocessed data (memory), or because the client certificate expired "+
			"(expired).",
			[]string{"reason"}, func(s *snapshot, put emitFunc) {
				for reason, n := range s.extra.Connections.Ended {
					put(float64(n), reason)
				}
			}),
		gaugeOf("certificate_expiry_timestamp_seconds", whenTLS,
			"Unix time at which a certificate of this node or of the witness expires.", []string{"file"},
			func(s *snapshot, put emitFunc) {
				put = distinct(put)
				for _, c := range s.node.Certificates {
					put(unix(c.Ends), c.File)
				}
			}),
		gaugeOf("certificate_expires_in_seconds", whenTLS,
			"Seconds until a certificate of this node (of: node, etcd, raft, metrics, console, site) or of the "+
				"witness (of: witness) expires; negative after expiry.",
			[]string{"of", "file"},
			func(s *snapshot, put emitFunc) {
				put = distinct(put)
				for _, c := range s.node.Certificates {
					put(time.Until(c.Ends).Seconds(), c.Use, c.File)
				}
			}),
		counterOf("auth_failures_total", "Calls with an invalid or expired token or certificate, or one that "+
			"could not be verified (limit, unavailable), by failed check.", []string{"check"},
			func(s *snapshot, put emitFunc) {
				for check, n := range s.extra.AuthFailures {
					put(float64(n), check)
				}
			}),
		traces("trace_spans_sent_total", "Trace spans accepted by the collector.",
			func(t *tracing.Stats) uint64 { return t.Sent }),
		traces("trace_spans_lost_total", "Trace spans that could not be sent to the collector.",
			func(t *tracing.Stats) uint64 { return t.Lost }),
		gauge("memory_budget_bytes", "Value of memory.budget.",
			func(s *snapshot) float64 { return float64(s.node.Activity.MemoryBudget) }),
		gauge("background_ratio", "Fraction of time available to background work, 0 to 1, adapted to the commit latency; 1 "+
			"without background work.", func(s *snapshot) float64 { return s.extra.Background.Share }),
		gaugeOf("background_reason", "", "1 for the current reason of background_ratio: no-work, no-commits, unknown "+
			"(the undisturbed commit latency is not measured yet), rising, undisturbed, slow-commits.", []string{"reason"},
			func(s *snapshot, put emitFunc) {
				for _, r := range throttle.Reasons() {
					put(boolValue(r == s.extra.Background.Reason), string(r))
				}
			}),
		gauge("commit_baseline_seconds", "90th percentile of commit latency without background work, the target for "+
			"throttling it; 0 while unknown.",
			func(s *snapshot) float64 { return s.extra.Background.Baseline.Seconds() }),
		gauge("commit_recent_seconds", "90th percentile of the latency of recent commits, as used for throttling; "+
			"0 without commits.",
			func(s *snapshot) float64 { return s.extra.Background.Latest.Seconds() }),
	}
}

func traces(name, help string, read func(t *tracing.Stats) uint64) family {
	return family{Metric{Name: name, Type: Counter, Help: help, When: whenTraces}, func(s *snapshot, put emitFunc) {
		if t := s.extra.Traces; t != nil {
			put(float64(read(t)))
		}
	}}
}

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
