// SPDX-License-Identifier: Apache-2.0

package config

import (
	"cmp"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/lockstep-mq/lockstep/store/backup"
	"github.com/lockstep-mq/lockstep/store/txn"
)

const (
	pageUnit    = 2 << 10
	maxPageSize = 1 << 20
	// maxMetricsQueues limits the size of a metrics scrape and the number of time series.
	maxMetricsQueues = 1000
	minMemory        = 16 << 20
	minSegmentBytes  = 1 << 20
	// transactionSlack is the overhead of the largest message in a transaction: properties, names, headers.
	transactionSlack = 128 << 10
)

// problem is one invalid setting.
type problem struct{ key, text string }

// checker collects problems, and records the valid ranges if requested.
type checker struct {
	problems []problem
	allowed  map[string]string // by key; nil: not recorded
}

func (c *checker) note(key, format string, args ...any) {
	if c.allowed != nil {
		c.allowed[key] = fmt.Sprintf(format, args...)
	}
}

func (c *checker) fail(key, format string, args ...any) {
	c.problems = append(c.problems, problem{key: key, text: fmt.Sprintf(format, args...)})
}

func (c *checker) oneOf(key, value string, allowed ...string) {
	c.note(key, "%s", strings.Join(allowed, ", "))
	if slices.Contains(allowed, value) {
		return
	}
	hint := ""
	if n := nearest(value, allowed); n != "" {
		hint = "; did you mean " + n + "?"
	}
	c.fail(key, "%q is not one of %s%s", value, strings.Join(allowed, ", "), hint)
}

func (c *checker) between(key string, value, lowest, highest int) {
	c.note(key, "%d to %d", lowest, highest)
	if value < lowest || value > highest {
		c.fail(key, "%d is not between %d and %d", value, lowest, highest)
	}
}

func (c *checker) sizeBetween(key string, value, lowest, highest Size) {
	c.note(key, "%s to %s", lowest, highest)
	if value < lowest || value > highest {
		c.fail(key, "%s is not between %s and %s", value, lowest, highest)
	}
}

func (c *checker) timeBetween(key string, value Duration, lowest, highest time.Duration) {
	c.note(key, "%s to %s", span(lowest), span(highest))
	if value.Std() < lowest || value.Std() > highest {
		c.fail(key, "%s is not between %s and %s", value, lowest, highest)
	}
}

// address checks host:port; anyPort allows port 0.
func (c *checker) address(key, value string, anyPort bool) {
	host, port, err := net.SplitHostPort(value)
	if err != nil {
		c.fail(key, "%q is not host:port", value)
		return
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		c.fail(key, "%q is not a port number between 0 and 65535", port)
		return
	}
	if anyPort {
		return
	}
	if n == 0 {
		c.fail(key, "port 0 is not reachable; specify the port")
	}
	if ip := net.ParseIP(host); host == "" || (ip != nil && ip.IsUnspecified()) {
		c.fail(key, "%q is not a reachable address; specify the host", value)
	}
}

// Validate returns nil if the settings are valid, or ErrInvalid with all problems, one per line.
func (c *Config) Validate() error {
	problems := c.problems()
	if len(problems) == 0 {
		return nil
	}
	lines := make([]string, 0, len(problems))
	for _, p := range problems {
		lines = append(lines, p.key+": "+p.text)
	}
	return fmt.Errorf("%w:\n  %s", ErrInvalid, strings.Join(lines, "\n  "))
}

func (c *Config) problems() []problem {
	var k checker
	c.check(&k)
	return k.problems
}

func (c *Config) check(k *checker) {
	c.checkNode(k)
	c.checkTLS(k)
	c.checkReach(k)
	c.checkAuth(k)
	c.checkCoordinator(k)
	c.checkStore(k)
	c.checkMaintenance(k)
	c.checkLimits(k)
}

func (c *Config) checkNode(k *checker) {
	if c.Node.Name == "" || len(c.Node.Name) > 255 {
		k.fail("node.name", "must have 1 to 255 bytes")
	}
	if c.Data.Dir == "" {
		k.fail("data.dir", "must not be empty")
	}
	k.address("listen", c.Listen, true)
	if c.Metrics.Listen != "" {
		k.address("metrics.listen", c.Metrics.Listen, true)
	}
	if c.Console.Listen != "" {
		k.address("console.listen", c.Console.Listen, true)
	}
	if c.AMQP.Listen != "" {
		k.address("amqp.listen", c.AMQP.Listen, true)
	}
	if c.AMQP.Advertise != "" {
		k.address("amqp.advertise", c.AMQP.Advertise, false)
	}
	c.checkTracing(k)
	k.between("metrics.queues", c.Metrics.Queues, 0, maxMetricsQueues)
	if c.Advertise != "" {
		k.address("advertise", c.Advertise, false)
	}
	k.oneOf("access.mode", c.Access.Mode, "open", "deny")
	for _, o := range c.Access.Operators {
		if len(o) > 255 {
			k.fail("access.operators", "%.40q… has %d bytes; maximum 255", o, len(o))
		}
	}
	k.oneOf("log.level", c.Log.Level, "debug", "info", "warn", "error")
	k.oneOf("log.format", c.Log.Format, "text", "json")
}

func (c *Config) checkTracing(k *checker) {
	t := &c.Tracing
	if scheme, rest, ok := strings.Cut(t.Endpoint, "://"); ok {
		if (scheme != "http" && scheme != "https") || rest == "" {
			k.fail("tracing.endpoint", "%q is not a URL with http or https", t.Endpoint)
		}
		if scheme == "https" && t.Insecure {
			k.fail("tracing.insecure", "conflicts with https in tracing.endpoint; remove one of them")
		}
	} else if t.Endpoint != "" {
		k.address("tracing.endpoint", t.Endpoint, false)
	}
	if t.Insecure && t.CA != "" {
		k.fail("tracing.insecure", "conflicts with tracing.ca; remove one of them")
	}
	k.note("tracing.sample", "0 to 1")
	if !(t.Sample >= 0 && t.Sample <= 1) {
		k.fail("tracing.sample", "%v is not between 0 and 1", t.Sample)
	}
	for i, h := range t.Headers {
		if key, value, ok := strings.Cut(h, "="); !ok || strings.TrimSpace(key) == "" || strings.TrimSpace(value) == "" {
			k.fail("tracing.headers", "entry %d is not key=value", i+1) // it may be a secret
		}
	}
}

func (c *Config) checkCoordinator(k *checker) {
	k.oneOf(keyCoordinator, c.Coordinator.Type, CoordinatorEtcd, CoordinatorRaft, CoordinatorNone)
	k.between("min-in-sync", c.MinInSync, 1, 2)
	if c.Coordinator.Type == CoordinatorNone {
		if c.MinInSync == 2 {
			k.fail("min-in-sync", "2 with coordinator.type none refuses all writes; use 1, or a pair")
		}
		return
	}
	if c.Coordinator.Type == CoordinatorRaft {
		c.checkRaft(k)
	} else {
		c.checkEtcd(k)
	}
	k.timeBetween("failover.timeout", c.Failover.Timeout, 100*time.Millisecond, 10*time.Minute)
	k.timeBetween("failover.failback-delay", c.Failover.FailbackDelay, 100*time.Millisecond, 7*24*time.Hour)
	k.timeBetween("failover.drop-timeout", c.Failover.DropTimeout, 50*time.Millisecond, 10*time.Minute)
	k.timeBetween("shutdown.handover-timeout", c.Shutdown.HandoverTimeout, 10*time.Millisecond, 10*time.Minute)
	if c.Failover.DropTimeout >= c.Failover.Timeout {
		k.fail("failover.drop-timeout", "%s is not below failover.timeout (%s); the active must drop a silent "+
			"standby before the standby takes over",
			c.Failover.DropTimeout, c.Failover.Timeout)
	}
}

func (c *Config) checkEtcd(k *checker) {
	e := &c.Coordinator.Etcd
	for _, endpoint := range e.Endpoints {
		c.checkEndpoint(k, endpoint)
	}
	if len(e.Endpoints) == 0 {
		k.fail("coordinator.etcd.endpoints", "at least one endpoint is required, such as 127.0.0.1:2379")
	}
	if strings.Trim(e.Prefix, "/") == "" {
		k.fail("coordinator.etcd.prefix", "a prefix is required, such as /lockstep/orders/")
	}
	if e.Username == "" && e.Password != "" {
		k.fail("coordinator.etcd.username", "a password is set without a username")
	}
	if (e.TLS.Cert == "") != (e.TLS.Key == "") {
		k.fail("coordinator.etcd.tls.cert", "cert and key must be set together")
	}
	k.timeBetween("coordinator.etcd.dial-timeout", e.DialTimeout, 10*time.Millisecond, time.Minute)
}

// voterCount is the number of voters of a pair.
const voterCount = 3

func (c *Config) checkRaft(k *checker) {
	r := &c.Coordinator.Raft
	for _, v := range r.Voters {
		k.address("coordinator.raft.voters", v, false)
	}
	if len(r.Voters) != voterCount {
		k.fail("coordinator.raft.voters", "three addresses are required (both nodes and the witness), "+
			"such as 10.0.0.1:7430,10.0.0.2:7430,10.0.0.3:7430")
	}
	switch {
	case r.Listen == "":
		k.fail("coordinator.raft.listen", "an address is required, host:port: this node's entry in coordinator.raft.voters")
	default:
		k.address("coordinator.raft.listen", r.Listen, r.Advertise != "")
	}
	if r.Advertise != "" {
		k.address("coordinator.raft.advertise", r.Advertise, false)
	}
	if own := cmp.Or(r.Advertise, r.Listen); own != "" && len(r.Voters) == voterCount &&
		!slices.Contains(r.Voters, own) {
		k.fail("coordinator.raft.voters", "the list lacks this node's address %s", own)
	}
	if (r.TLS.Cert == "") != (r.TLS.Key == "") || (r.TLS.CA == "") != (r.TLS.Cert == "") {
		k.fail("coordinator.raft.tls.ca", "ca, cert and key must be set together")
	}
}

func (c *Config) checkEndpoint(k *checker, endpoint string) {
	host := endpoint
	for _, scheme := range []string{"http://", "https://"} {
		host = strings.TrimPrefix(host, scheme)
	}
	if _, _, err := net.SplitHostPort(host); err != nil {
		k.fail("coordinator.etcd.endpoints", "%q is not host:port", endpoint)
	}
}

func (c *checker) pageSize(key string, value Size) {
	c.note(key, "2KiB to 1MiB, a multiple of 2KiB")
	if value < pageUnit || value > maxPageSize || value%pageUnit != 0 {
		c.fail(key, "%s is not a multiple of 2KiB between 2KiB and 1MiB", value)
	}
}

func (c *Config) checkMaintenance(k *checker) {
	k.pageSize("page-size-max", c.PageSizeMax)
	c.checkBackup(k)
	k.between("maintenance.background-share", int(c.Maintenance.BackgroundShare), 1, 100)
	if c.Maintenance.SnapshotRate != 0 {
		k.sizeBetween("maintenance.snapshot-rate", c.Maintenance.SnapshotRate, 1<<20, 1<<50)
	}
	if c.Maintenance.RewriteRate != 0 {
		k.sizeBetween("maintenance.rewrite-rate", c.Maintenance.RewriteRate, pageUnit, 1<<50)
	}
	if c.Scrub.Rate != 0 {
		k.sizeBetween("scrub.rate", c.Scrub.Rate, 64<<10, 1<<50)
	}
	if c.Scrub.Interval != 0 {
		k.timeBetween("scrub.interval", c.Scrub.Interval, time.Second, 365*24*time.Hour)
	}
	if c.Verify.Interval != 0 {
		k.timeBetween("verify.interval", c.Verify.Interval, time.Second, 365*24*time.Hour)
	}
	k.timeBetween("wal.archive-interval", c.WAL.ArchiveEvery, 100*time.Millisecond, 24*time.Hour)
	k.sizeBetween("wal.archive-hold-bytes", c.WAL.ArchiveHold, 1<<20, 1<<50)
}

// checkBackup checks the locations of backups and the archive.
func (c *Config) checkBackup(k *checker) {
	k.between("backup.keep-generations", c.Backup.KeepGenerations, 1, 10_000)
	for key, path := range map[string]string{"backup.path": c.Backup.Path, "wal.archive": c.WAL.Archive} {
		if path == "" {
			continue
		}
		if _, err := backup.ParseLocation(path); err != nil {
			k.fail(key, "%v", err)
		}
	}
	s3 := &c.Backup.S3
	if s3.Endpoint != "" {
		if _, _, err := backup.ParseEndpoint(s3.Endpoint); err != nil {
			k.fail("backup.s3.endpoint", "%v", err)
		}
	}
	if (s3.AccessKeyFile == "") != (s3.SecretKeyFile == "") {
		k.fail("backup.s3.access-key-file", "access-key-file and secret-key-file must be set together")
	}
	if s3.SessionTokenFile != "" && s3.AccessKeyFile == "" {
		k.fail("backup.s3.session-token-file", "requires backup.s3.access-key-file and backup.s3.secret-key-file")
	}
	k.sizeBetween("backup.s3.part-size", s3.PartSize, 5<<20, 1<<30)
	k.between("backup.s3.parallel", s3.Parallel, 1, 64)
	k.timeBetween("backup.s3.retry-for", s3.RetryFor, 100*time.Millisecond, time.Hour)
}

func (c *Config) checkStore(k *checker) {
	k.oneOf("sync", c.Sync, "always", "interval", "off")
	k.timeBetween("sync-interval", c.SyncEvery, time.Millisecond, time.Minute)
	k.timeBetween("commit-delay", c.CommitDelay, 0, 100*time.Millisecond)
	k.pageSize("page-size", c.PageSize)
	k.sizeBetween("memory.budget", c.Memory.Budget, minMemory, 1<<50)
	k.oneOf("memory.page-cache", c.Memory.PageCache, "auto", "keep", "drop")
	k.sizeBetween("checkpoint.bytes", c.Checkpoint.Bytes, 1<<20, 1<<50)
	k.timeBetween("checkpoint.interval", c.Checkpoint.Interval, 100*time.Millisecond, 24*time.Hour)
	k.timeBetween("disk.stall-timeout", c.Disk.StallTimeout, 100*time.Millisecond, time.Hour)
	k.sizeBetween("wal.keep-bytes", c.WAL.KeepBytes, 0, 1<<50)
	k.sizeBetween("wal.segment-bytes", c.WAL.SegmentBytes, minSegmentBytes, 4<<30)
}

func (c *Config) checkLimits(k *checker) {
	l := &c.Limits
	k.sizeBetween("limits.message-bytes", l.MessageBytes, 1<<10, txn.MaxBodyBytes)
	k.sizeBetween("limits.transaction-bytes", l.TransactionBytes, 1<<10+transactionSlack, txn.MaxTransactionBytes)
	if l.TransactionBytes < l.MessageBytes+transactionSlack {
		k.fail("limits.transaction-bytes", "%s cannot hold a message of limits.message-bytes (%s) and the %s around it",
			l.TransactionBytes, l.MessageBytes, Size(transactionSlack))
	}
	k.between("limits.queues", l.Queues, 1, 10_000_000)
	k.between("limits.consumers", l.Consumers, 1, 1_000_000)
	k.between("limits.outstanding", l.Outstanding, 1, 10_000_000)
	k.between("limits.stream-in-flight", l.StreamInFlight, 1, 1_000_000)
	k.sizeBetween("limits.stream-in-flight-bytes", l.StreamInFlightBytes, 1<<20, 1<<40)
	k.sizeBetween("limits.pending-bytes", l.PendingBytes, 1<<20, 1<<40)
	k.sizeBetween("audit.max-bytes", c.Audit.MaxBytes, 1<<20, 1<<40)
	if c.Audit.MaxBytes%(1<<20) != 0 {
		k.fail("audit.max-bytes", "%s is not a multiple of 1MiB", c.Audit.MaxBytes)
	}
	k.between("audit.keep", c.Audit.Keep, 1, 10_000)
	k.between("limits.connections", l.Connections, 16, 1_000_000)
	k.between("limits.connections-per-address", l.ConnectionsPerAddress, 8, 1_000_000)
	k.between("limits.handshakes", l.Handshakes, 8, 1_000_000)
	k.timeBetween("limits.handshake-timeout", l.HandshakeTimeout, 100*time.Millisecond, 10*time.Minute)
	k.between("limits.delivery-share", int(l.DeliveryShare), 1, 100)
	if c.Txn.PreparedTimeout != 0 {
		k.timeBetween("txn.prepared-timeout", c.Txn.PreparedTimeout, time.Second, 365*24*time.Hour)
	}
	if l.PendingBytes < l.TransactionBytes {
		k.fail("limits.pending-bytes", "%s cannot hold one transaction of limits.transaction-bytes (%s)",
			l.PendingBytes, l.TransactionBytes)
	}
}
