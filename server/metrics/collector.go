package metrics

import (
	"slices"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/lockstep-mq/lockstep/failover"
	"github.com/lockstep-mq/lockstep/server"
	"github.com/lockstep-mq/lockstep/server/conditions"
	"github.com/lockstep-mq/lockstep/store"
)

// namespace of all metrics of this program.
const namespace = "lockstep"

// value is one metric without labels, and how it is read.
type value struct {
	desc *prometheus.Desc
	kind prometheus.ValueType
	read func(*snapshot) float64
}

// snapshot is what one scrape sees.
type snapshot struct {
	node   server.NodeState
	store  store.Stats
	damage store.DamageStatus
	low    bool
}

// collector reads a node when it is scraped.
type collector struct {
	source Source
	store  *store.Store
	values []value
	role   *prometheus.Desc
	up     *prometheus.Desc
	maint  *prometheus.Desc
	cond   *prometheus.Desc
}

// isSo tells whether a condition is the case, on whichever node.
func (s *snapshot) isSo(k conditions.Kind) bool {
	return slices.ContainsFunc(s.node.Conditions, func(c conditions.Condition) bool { return c.Definition.Kind == k })
}

func newCollector(source Source, s *store.Store) *collector {
	name := func(n string) string { return prometheus.BuildFQName(namespace, "", n) }
	c := &collector{
		source: source, store: s,
		role: prometheus.NewDesc(name("role"), "1 for the role that the node has now.", []string{"role"}, nil),
		up:   prometheus.NewDesc(name("store_usable"), "0 when the store has failed and the node is about to end.", nil, nil),
		maint: prometheus.NewDesc(name("maintenance_progress_ratio"), "How much of the maintenance operation under way is done, 0 to 1.",
			[]string{"operation"}, nil),
		cond: prometheus.NewDesc(name("condition"), "1 while the condition is the case on this node, in its pair or, as far as this node knows, on the "+
			"other one; docs/runbook.md describes each.", []string{"condition", "severity"}, nil),
	}
	gauge := func(n, help string, read func(*snapshot) float64) {
		c.values = append(c.values, value{prometheus.NewDesc(name(n), help, nil, nil), prometheus.GaugeValue, read})
	}
	counter := func(n, help string, read func(*snapshot) float64) {
		c.values = append(c.values, value{prometheus.NewDesc(name(n), help, nil, nil), prometheus.CounterValue, read})
	}
	pairMetrics(gauge)
	storeMetrics(gauge, counter)
	damageMetrics(gauge, counter)
	return c
}

type define func(name, help string, read func(*snapshot) float64)

func pairMetrics(gauge define) {
	gauge("term", "Term of the pair's record that the node knows.", func(s *snapshot) float64 {
		if s.node.Pair.Record == nil {
			return 0
		}
		return float64(s.node.Pair.Record.Term)
	})
	gauge("in_sync_nodes", "Nodes that hold every committed transaction, by the record that the node knows.", func(s *snapshot) float64 {
		if s.node.Pair.Record == nil {
			return 0
		}
		return float64(len(s.node.Pair.Record.InSync))
	})
	gauge("coordinator_reachable", "1 if the coordinator answered the last time that it was asked.", func(s *snapshot) float64 {
		return truth(s.node.Pair.CoordinatorReachable)
	})
	gauge("standby_lag_records", "Records that the active has and its standby has not yet; 0 on a node that is not active.",
		func(s *snapshot) float64 {
			if p := s.node.Primary; p != nil && p.Standby != nil && p.End.LSN > p.Standby.Durable.LSN {
				return float64(p.End.LSN - p.Standby.Durable.LSN)
			}
			return 0
		})
	gauge("disk_low", "1 while publishes are refused because the disk is nearly full.", func(s *snapshot) float64 { return truth(s.low) })
	gauge("start_time_seconds", "When the process started, in Unix time.", func(s *snapshot) float64 {
		return float64(s.node.StartedAt.UnixMilli()) / 1000
	})
}

func storeMetrics(gauge, counter define) {
	gauge("log_end_lsn", "LSN of the last record in the log.", func(s *snapshot) float64 { return float64(s.store.End.LSN) })
	gauge("log_durable_lsn", "LSN of the last record that is durable on this node.", func(s *snapshot) float64 { return float64(s.store.Durable.LSN) })
	gauge("applied_lsn", "LSN of the last record that was applied.", func(s *snapshot) float64 { return float64(s.store.Applied.LSN) })
	counter("checkpoints_total", "Checkpoints that page.db ever had.", func(s *snapshot) float64 { return float64(s.store.Checkpoint) })
	gauge("checkpoint_lsn", "LSN that the last checkpoint holds.", func(s *snapshot) float64 { return float64(s.store.CheckpointLSN) })
	gauge("log_bytes", "Log on disk.", func(s *snapshot) float64 { return float64(s.store.LogBytes) })
	gauge("page_size_bytes", "Page size of page.db.", func(s *snapshot) float64 { return float64(s.store.PageSize) })
	gauge("pages", "Pages of page.db.", func(s *snapshot) float64 { return float64(s.store.Pages) })
	gauge("pages_used", "Pages of page.db that hold something.", func(s *snapshot) float64 { return float64(s.store.PagesUsed) })
	gauge("queues", "Queues.", func(s *snapshot) float64 { return float64(s.store.Queues) })
	gauge("messages", "Messages that some subscription still wants.", func(s *snapshot) float64 { return float64(s.store.Messages) })
	gauge("message_bytes", "Their bytes.", func(s *snapshot) float64 { return float64(s.store.MessageBytes) })
	gauge("memory_message_bytes", "Messages in memory that are not yet in pages.", func(s *snapshot) float64 { return float64(s.store.TailBytes) })
	gauge("disk_free_bytes", "What may still be written to the filesystem of the store.", func(s *snapshot) float64 { return float64(s.store.DiskFree) })
}

func damageMetrics(gauge, counter define) {
	gauge("alarms", "Conditions that are a warning or critical; lockstep_condition says which ones they are.",
		func(s *snapshot) float64 {
			n := 0
			for i := range s.node.Conditions {
				if s.node.Conditions[i].Definition.Severity >= conditions.Warning {
					n++
				}
			}
			return float64(n)
		})
	gauge("nodes_differ", "1 when the last comparison found that the two nodes do not hold the same.", func(s *snapshot) float64 {
		return truth(s.isSo(conditions.DigestsDiffer))
	})
	gauge("damaged_messages", "Messages that are wanted and cannot be read on this node.", func(s *snapshot) float64 { return float64(s.damage.DamagedMessages) })
	gauge("lost_messages", "Of those, the ones that are damaged on both nodes.", func(s *snapshot) float64 { return float64(s.damage.LostMessages) })
	gauge("index_damaged", "1 when the store has to be replaced by a copy of the other node's.", func(s *snapshot) float64 { return truth(s.damage.Index != nil) })
	counter("scrubbed_pages_total", "Pages that the scrub has read.", func(s *snapshot) float64 { return float64(s.damage.ScrubbedPages) })
	counter("scrubbed_log_bytes_total", "Log that the scrub has read.", func(s *snapshot) float64 { return float64(s.damage.ScrubbedLogBytes) })
	counter("damaged_pages_found_total", "Damaged stretches of pages that were found.", func(s *snapshot) float64 { return float64(s.damage.FoundPages) })
	counter("damaged_log_found_total", "Damaged places in the log that were found.", func(s *snapshot) float64 { return float64(s.damage.FoundLog) })
	counter("repaired_pages_total", "Damaged stretches of pages that were made good.", func(s *snapshot) float64 { return float64(s.damage.RepairedPages) })
	counter("repaired_messages_total", "Messages that came from the other node for that.", func(s *snapshot) float64 { return float64(s.damage.RepairedMessages) })
	counter("repaired_log_total", "Damaged places in the log that were given up because checkpoints hold what was there.",
		func(s *snapshot) float64 { return float64(s.damage.RepairedLog) })
}

// Describe is for Prometheus.
func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	for i := range c.values {
		ch <- c.values[i].desc
	}
	ch <- c.role
	ch <- c.up
	ch <- c.maint
	ch <- c.cond
}

// Collect is for Prometheus.
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	s := snapshot{node: c.source.State(), low: c.source.DiskLow()}
	for r := failover.RoleRecovering; r <= failover.RoleFenced; r++ {
		ch <- prometheus.MustNewConstMetric(c.role, prometheus.GaugeValue, truth(r == s.node.Pair.Role), r.String())
	}
	for _, d := range conditions.All() {
		ch <- prometheus.MustNewConstMetric(c.cond, prometheus.GaugeValue, truth(s.isSo(d.Kind)), string(d.Kind), d.Severity.String())
	}
	var err error
	s.store, err = c.store.Stats()
	ch <- prometheus.MustNewConstMetric(c.up, prometheus.GaugeValue, truth(err == nil))
	if err != nil {
		return // what is wrong with the store is in the log
	}
	s.damage = c.store.DamageStatus()
	for i := range c.values {
		ch <- prometheus.MustNewConstMetric(c.values[i].desc, c.values[i].kind, c.values[i].read(&s))
	}
	if m := s.node.Maintenance; m != nil && m.Progress.Total > 0 {
		done := float64(m.Progress.Done) / float64(m.Progress.Total)
		ch <- prometheus.MustNewConstMetric(c.maint, prometheus.GaugeValue, done, m.Operation)
	}
}

func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
