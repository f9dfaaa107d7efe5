// SPDX-License-Identifier: Apache-2.0

// Package config implements the settings of a Lockstep node: names, defaults, descriptions and valid values.
//
// Each setting has a dotted key (`wal.keep-bytes`), which is its path in the YAML file. The names of its flag
// (`--wal-keep-bytes`) and its environment variable (`LOCKSTEP_WAL_KEEP_BYTES`) are derived from the key. Flags
// take precedence over the environment, the environment over the file, and the file over the defaults. The tags
// of struct Config define keys, flags, variables, the help text, valid values and
// docs/reference/configuration.md. The tag `range` contains the valid values. The tag `run` marks a setting that
// can be changed at run time, with the scope of the change: `pair` or `node`.
package config

import "time"

// Values of coordinator.type.
const (
	CoordinatorEtcd = "etcd"
	CoordinatorRaft = "raft" // a quorum of the two nodes and a witness
	CoordinatorNone = "none" // a single node, always active, without a standby or failover
)

// Config contains the settings of one node. The zero value is not valid; start with Default.
type Config struct {
	Node        Node        `key:"node"`
	Data        Data        `key:"data"`
	Listen      string      `key:"listen" usage:"address for clients, the CLI and the other node, host:port; port 0 selects a free port"`
	Advertise   string      `key:"advertise" usage:"address at which clients and the other node reach this node, host:port; default: from listen"`
	TLS         NodeTLS     `key:"tls"`
	PeerToken   string      `key:"peer-token-file" usage:"file with secrets shared by the two nodes, one per line: the first is sent to the other node, all are accepted from it. For a pair without TLS or without client certificates"`
	Insecure    bool        `key:"insecure" usage:"permit listening without TLS on addresses that other machines can reach, connections to another site without TLS, and nodes, sites and pairs that cannot authenticate each other"`
	Auth        Auth        `key:"auth"`
	Access      Access      `key:"access"`
	Coordinator Coordinator `key:"coordinator"`
	Sync        string      `key:"sync" range:"always, interval, off" usage:"when a transaction is acknowledged: always (after fdatasync on all in-sync nodes), interval or off (when it is in their page caches)"`
	SyncEvery   Duration    `key:"sync-interval" range:"1ms to 1m" usage:"interval of log syncs with sync=interval"`
	CommitDelay Duration    `key:"commit-delay" range:"0s to 100ms" usage:"time for which the active node collects transactions for one log write, up to 100ms: larger writes, higher latency. 0: no delay; transactions that arrive during a write form the next batch"`
	Memory      Memory      `key:"memory"`
	PageSize    Size        `key:"page-size" range:"2KiB to 1MiB, a multiple of 2KiB" usage:"page size of a new page file, a multiple of 2KiB; existing page files keep theirs"`
	PageSizeMax Size        `key:"page-size-max" range:"2KiB to 1MiB, a multiple of 2KiB" usage:"largest page size that a scan recommends, a multiple of 2KiB up to 1MiB; the setting of the pair takes precedence"`
	Resize      bool        `key:"resize-on-startup" usage:"resize page.db to the recommended page size at the next start, once each time it is enabled"`
	Compact     bool        `key:"compact-on-startup" usage:"compact page.db at the next start, once each time it is enabled"`
	Checkpoint  Checkpoint  `key:"checkpoint"`
	WAL         WAL         `key:"wal"`
	Log         Log         `key:"log"`
	Failover    Failover    `key:"failover"`
	Site        Site        `key:"site"`
	Fleet       Fleet       `key:"fleet"`
	MinInSync   int         `key:"min-in-sync" range:"1 to 2" run:"pair" usage:"number of in-sync nodes required for writes. 1: a node continues alone; 2: writes are refused while only one node is in sync. Each new active node writes it to the cluster record: set it on both nodes"`
	Shutdown    Shutdown    `key:"shutdown"`
	Disk        Disk        `key:"disk"`
	Backup      Backup      `key:"backup"`
	Maintenance Maintenance `key:"maintenance"`
	Scrub       Scrub       `key:"scrub"`
	Verify      Verify      `key:"verify"`
	Metrics     Metrics     `key:"metrics"`
	Console     Console     `key:"console"`
	AMQP        AMQP        `key:"amqp"`
	Tracing     Tracing     `key:"tracing"`
	Audit       Audit       `key:"audit"`
	Limits      Limits      `key:"limits"`
	Txn         Txn         `key:"txn"`
	// Warnings contains warnings for the operator. It is not a setting.
	Warnings []string `key:"-"`
}

// Node contains the settings that describe the node to operators.
type Node struct {
	Name string `key:"name" usage:"node name in status and logs; default: the host name"`
}

// Access configures access in addition to the access rules that the pair stores.
type Access struct {
	Mode      string   `key:"mode" range:"open, deny" usage:"access without any rule: open (all clients have all rights) or deny (only access.operators)"`
	Operators []string `key:"operators" usage:"principals or globs such as ops-* with all rights regardless of rules, comma-separated or a list; prevents lockout. Equal on both nodes"`
}

// Data configures the location of the store.
type Data struct {
	Dir string `key:"dir" usage:"directory of the store; created if missing"`
}

// Coordinator configures the coordinator, which stores the cluster record.
type Coordinator struct {
	Type string `key:"type" range:"etcd, raft, none" usage:"location of the cluster record: etcd; raft (quorum of the two nodes and a witness); none (single node)"`
	Etcd Etcd   `key:"etcd"`
	Raft Raft   `key:"raft"`
}

// Raft configures the quorum of the two nodes and a witness.
type Raft struct {
	Listen    string   `key:"listen" usage:"listen address for the other voters, host:port"`
	Advertise string   `key:"advertise" usage:"address at which the other voters reach this node, host:port; default: listen"`
	Voters    []string `key:"voters" usage:"addresses of the three voters (both nodes and the witness), comma-separated or a list; equal on all three"`
	Dir       string   `key:"dir" usage:"directory for this node's vote and copy of the cluster record; default: raft in data.dir"`
	TLS       RaftTLS  `key:"tls"`
}

// RaftTLS contains the paths of PEM files, and the accepted names.
type RaftTLS struct {
	CA    string   `key:"ca" usage:"CA file for the voters' certificates; enables TLS between voters"`
	Cert  string   `key:"cert" usage:"file with this voter's certificate, for server and client use"`
	Key   string   `key:"key" usage:"file with the key of the certificate"`
	Names []string `key:"names" usage:"names (DNS, IP or URI) accepted in certificates of other voters, and of operators who change the quorum; default: the hosts of the voters' addresses"`
}

// Etcd configures the connection to etcd.
type Etcd struct {
	Endpoints    []string `key:"endpoints" usage:"etcd endpoints, comma-separated or a list"`
	Prefix       string   `key:"prefix" usage:"key prefix of this pair in etcd, unique per pair"`
	Username     string   `key:"username" usage:"etcd user"`
	Password     string   `key:"password" usage:"password of the etcd user; prefer password-file or the environment"`
	PasswordFile string   `key:"password-file" usage:"file with the password of the etcd user"`
	DialTimeout  Duration `key:"dial-timeout" range:"10ms to 1m" usage:"time limit of a connection attempt and of a background request to etcd"`
	TLS          TLS      `key:"tls"`
}

// TLS contains the paths of PEM files.
type TLS struct {
	CA   string `key:"ca" usage:"CA file for etcd's certificate; enables TLS"`
	Cert string `key:"cert" usage:"file with this node's client certificate for etcd"`
	Key  string `key:"key" usage:"file with the key of the certificate"`
}

// Memory configures the memory budget.
type Memory struct {
	Budget    Size   `key:"budget" range:"16MiB to 1024TiB" usage:"approximate memory of the process: half for messages not yet in pages and parts of the index, half for requests in progress"`
	PageCache string `key:"page-cache" range:"auto, keep, drop" usage:"page cache use of checkpoints and large log writes: keep (through the cache), drop (bypass it), or auto (bypass on the standby, where no consumer reads; otherwise the faster one)"`
}

// Checkpoint configures when checkpoints are written.
type Checkpoint struct {
	Bytes    Size     `key:"bytes" range:"1MiB to 1024TiB" usage:"log size after which a checkpoint is written"`
	Interval Duration `key:"interval" range:"100ms to 24h" usage:"longest time between checkpoints while the store changes"`
}

// WAL configures the transaction log, which is replicated and used for recovery.
type WAL struct {
	KeepBytes    Size     `key:"keep-bytes" range:"0 to 1024TiB" usage:"minimum amount of log to retain, so that a standby can catch up"`
	SegmentBytes Size     `key:"segment-bytes" range:"1MiB to 4GiB" usage:"size of a log segment file"`
	Archive      string   `key:"archive" usage:"destination of the log archive for point-in-time restore: directory, file:///PATH or s3://BUCKET/PREFIX; separate for each node (in a bucket, a folder with the node name); if empty, no archive"`
	ArchiveEvery Duration `key:"archive-interval" range:"100ms to 24h" usage:"interval of log archiving; if this node's disk is lost, a restore can miss the transactions of one interval"`
	ArchiveHold  Size     `key:"archive-hold-bytes" range:"1MiB to 1024TiB" usage:"log retained while archiving fails; beyond that, log is deleted and the archive has a gap"`
}

// Log configures the process log on stderr.
type Log struct {
	Level  string `key:"level" range:"debug, info, warn, error" run:"node" usage:"minimum log level: debug, info, warn or error"`
	Format string `key:"format" range:"text, json" usage:"log format on stderr: text or json"`
}

// Failover configures failure detection. These times affect how soon a failover starts, not the safety of writes.
type Failover struct {
	Timeout       Duration `key:"timeout" range:"100ms to 10m" usage:"time without a heartbeat from the active node after which the standby takes over; a killed process is detected within milliseconds"`
	DropTimeout   Duration `key:"drop-timeout" range:"50ms to 10m" usage:"time without a response after which the active node drops the standby from the in-sync set; must be below failover.timeout"`
	Preferred     bool     `key:"preferred" usage:"make this node active when it has been in sync for the failover.failback-delay of the other node; set it on one node only"`
	FailbackDelay Duration `key:"failback-delay" range:"100ms to 168h" usage:"uninterrupted time in sync before this node hands over to the preferred node"`
}

// Shutdown configures the switchover before a node stops.
type Shutdown struct {
	Handover        bool     `key:"handover" usage:"switch over before an active node stops (SIGINT or SIGTERM), if the standby is in sync and the pair is not paused"`
	HandoverTimeout Duration `key:"handover-timeout" range:"10ms to 10m" usage:"time limit of that switchover; the node then stops without it"`
}

// Disk configures the free space checks of the store's filesystem.
type Disk struct {
	LowWatermark Size     `key:"low-watermark" run:"node" usage:"free space below which publishes are refused; acknowledgements continue"`
	StallTimeout Duration `key:"stall-timeout" range:"100ms to 1h" usage:"duration of a log write or sync after which the node stops its heartbeats, so that the other node takes over"`
}

// Backup configures the backups of this node.
type Backup struct {
	Path            string   `key:"path" usage:"destination of backups: directory on this node, file:///PATH or s3://BUCKET/PREFIX; the setting of the pair takes precedence"`
	KeepGenerations int      `key:"keep-generations" range:"1 to 10000" usage:"number of backups to keep; the setting of the pair takes precedence"`
	Recipients      []string `key:"recipients" usage:"age public keys (age1…) to which this node's backups and log archive are encrypted, comma-separated or a list; if empty, they are not encrypted. Only a restore needs the secret keys"`
	S3              BackupS3 `key:"s3"`
}

// BackupS3 configures access to the S3 server of backup.path and wal.archive. The keys are not settings.
type BackupS3 struct {
	Endpoint         string   `key:"endpoint" usage:"URL of the S3 server of backup.path and wal.archive, such as https://s3.example.com:9000; default: Amazon S3"`
	Region           string   `key:"region" usage:"region of the bucket; default: AWS_REGION or AWS_DEFAULT_REGION, or us-east-1"`
	PathStyle        bool     `key:"path-style" usage:"use path-style requests (bucket in the path, not in the host); always on for servers other than Amazon's"`
	CA               string   `key:"ca" usage:"CA file for the S3 server's certificate; default: the system's CAs"`
	AccessKeyFile    string   `key:"access-key-file" usage:"file with the access key, reloaded every minute; default: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, the shared AWS credentials file or, with Amazon's endpoint, the IAM role of the instance"`
	SecretKeyFile    string   `key:"secret-key-file" usage:"file with the secret key"`
	SessionTokenFile string   `key:"session-token-file" usage:"file with the session token of temporary keys, if required"`
	PartSize         Size     `key:"part-size" range:"5MiB to 1GiB" usage:"part size of multipart uploads, increased for very large files (an upload has at most 10,000 parts)"`
	Parallel         int      `key:"parallel" range:"1 to 64" usage:"maximum number of parts uploaded in parallel; fewer, but at least two, if they would use more than an eighth of memory.budget"`
	RetryFor         Duration `key:"retry-for" range:"100ms to 1h" usage:"time limit of retries if the S3 server does not respond or is busy"`
}

// Maintenance configures the speed of background work.
type Maintenance struct {
	BackgroundShare Percent `key:"background-share" range:"1% to 100%" run:"node" usage:"maximum fraction of time in which a scan, backup, check or verification runs; the actual fraction is lower while the work slows commits down"`
	SnapshotRate    Size    `key:"snapshot-rate" range:"0, or 1MiB to 1024TiB" run:"node" usage:"maximum rate at which a snapshot is received, in bytes per second; 0: unlimited. The actual rate is lower while the transfer slows commits down"`
	RewriteRate     Size    `key:"rewrite-rate" range:"0, or 2KiB to 1024TiB" run:"node" usage:"maximum rate of a resize or compact, in bytes per second, such as 50MiB; 0: unlimited. The actual rate is lower while the rewrite slows commits down"`
}

// Scrub configures the periodic scrub, which reads all data and repairs corruption.
type Scrub struct {
	Rate     Size     `key:"rate" range:"0, or 64KiB to 1024TiB" run:"node" usage:"read rate of the background scrub, in bytes per second, such as 4MiB; 0: unlimited"`
	Interval Duration `key:"interval" range:"0, or 1s to 8760h" usage:"time between the starts of two scrubs of all pages and the log; the first starts one minute after the node. 0: disabled"`
}

// Verify configures the comparison of the two nodes.
type Verify struct {
	Interval Duration `key:"interval" range:"0, or 1s to 8760h" usage:"interval at which the active node compares its queue digests with the standby's; low cost. 0: disabled"`
}

// Metrics configures the port for metrics and probes.
type Metrics struct {
	Listen string     `key:"listen" usage:"listen address for Prometheus (/metrics), probes (/healthz, /readyz, /activez) and profiles (/debug/pprof/), host:port; if empty, disabled"`
	Queues int        `key:"queues" range:"0 to 1000" usage:"number of queues with per-queue metrics (those with the most messages): 4 series per queue, and 3 for each of up to the same number of subscriptions of each queue. 0: none"`
	Token  string     `key:"token-file" usage:"file with bearer tokens for /metrics, one per line; if empty, /metrics requires no token. Probes never require one"`
	TLS    MetricsTLS `key:"tls"`
}

// MetricsTLS configures TLS of the port for metrics and probes.
type MetricsTLS struct {
	Own  bool   `key:"own" usage:"also use tls.cert, tls.key and tls.ca for metrics.listen"`
	Cert string `key:"cert" usage:"file with a certificate for metrics.listen; enables TLS"`
	Key  string `key:"key" usage:"file with the key of the certificate"`
	CA   string `key:"ca" usage:"CA file for client certificates, which are optional"`
}

// Console configures the web console for operators.
type Console struct {
	Listen string     `key:"listen" usage:"listen address of the web console, host:port; if empty, disabled"`
	TLS    ConsoleTLS `key:"tls"`
}

// ConsoleTLS configures TLS of the console's port.
type ConsoleTLS struct {
	Own  bool   `key:"own" usage:"also use tls.cert, tls.key and tls.ca for console.listen"`
	Cert string `key:"cert" usage:"file with a certificate for console.listen; enables TLS"`
	Key  string `key:"key" usage:"file with the key of the certificate"`
	CA   string `key:"ca" usage:"CA file for operators' certificates, which are optional"`
}

// AMQP configures the port for AMQP 1.0 clients.
type AMQP struct {
	Listen     string `key:"listen" usage:"listen address for AMQP 1.0 clients, such as Qpid JMS, host:port; if empty, disabled. Uses TLS with the same certificates as listen"`
	Advertise  string `key:"advertise" usage:"address at which AMQP clients reach this node, host:port; the other node redirects them to it. Default: the host of advertise, with the port of amqp.listen"`
	AutoCreate bool   `key:"auto-create" usage:"create a missing queue when an AMQP client names it and has the right to manage it"`
}

// Tracing configures the export of trace spans.
type Tracing struct {
	Endpoint string   `key:"endpoint" usage:"trace collector (OTLP over gRPC): host:port, or a URL with http or https; default: OTEL_EXPORTER_OTLP_ENDPOINT, or none"`
	Sample   Ratio    `key:"sample" range:"0 to 1" usage:"sampled fraction of requests without a trace context, 0 to 1; requests with a context follow its sampling decision"`
	Headers  []string `key:"headers" usage:"headers of requests to the collector, such as authorization=Bearer …, comma-separated or a list; prefer the environment"`
	Insecure bool     `key:"insecure" usage:"connect to the collector without TLS"`
	CA       string   `key:"ca" usage:"CA file for the collector's certificate; default: the system's CAs"`
}

// DefaultSample is the default of tracing.sample.
const DefaultSample Ratio = 0.01

// Audit configures the audit log of administrative and denied calls.
type Audit struct {
	File     string `key:"file" usage:"audit file: JSON lines with administrative and denied calls; denied calls of one kind within 10 s share a line; if empty, the calls are logged. lockstep audit tail prints the newest"`
	MaxBytes Size   `key:"max-bytes" range:"1MiB to 1TiB, a multiple of 1MiB" usage:"size at which the audit file is rotated, in whole MiB"`
	Keep     int    `key:"keep" range:"1 to 10000" usage:"number of rotated audit files to keep"`
}

// Limits contains the limits of requests, connections and other resources.
type Limits struct {
	MessageBytes        Size `key:"message-bytes" range:"1KiB to 64MiB" run:"pair" usage:"maximum message body size"`
	TransactionBytes    Size `key:"transaction-bytes" range:"129KiB to 80MiB" usage:"maximum transaction size, all messages together"`
	Queues              int  `key:"queues" range:"1 to 1000000" run:"pair" usage:"maximum number of queues"`
	Consumers           int  `key:"consumers" range:"1 to 1000000" run:"pair" usage:"maximum number of consumers on this node"`
	Outstanding         int  `key:"outstanding" range:"1 to 10000000" run:"pair" usage:"maximum number of unacknowledged messages per consumer, and its maximum credit"`
	StreamInFlight      int  `key:"stream-in-flight" range:"1 to 1000000" run:"pair" usage:"maximum number of unanswered requests per publish stream"`
	StreamInFlightBytes Size `key:"stream-in-flight-bytes" range:"1MiB to 1TiB" run:"pair" usage:"maximum bytes of unanswered requests per publish stream; at most an eighth of memory.budget"`
	PendingBytes        Size `key:"pending-bytes" range:"1MiB to 1TiB" usage:"maximum bytes of transactions queued for commit, over all clients; further requests wait in their connections. At most half of memory.budget, but at least one transaction of limits.transaction-bytes"`

	Connections           int      `key:"connections" range:"16 to 1000000" run:"node" usage:"maximum number of connections from clients and the CLI; at most one per 64KiB of memory.budget, and within the limit of open files. Connections from the other node are reserved separately"`
	ConnectionsPerAddress int      `key:"connections-per-address" range:"8 to 1000000" run:"node" usage:"maximum number of open connections per address (IPv6: per /64 network), and of connections that an address can open in 4s without a call; raise it if many clients use one proxy"`
	Handshakes            int      `key:"handshakes" range:"8 to 1000000" run:"node" usage:"maximum number of connections without an authenticated call, over all addresses. At the limit, the oldest are closed, or new ones are refused. For addresses with authenticated connections, the limit is 25% higher"`
	HandshakeTimeout      Duration `key:"handshake-timeout" range:"100ms to 10m" run:"node" usage:"time limit from accepting a connection to its first authenticated call; the connection is then closed"`

	DeliveryShare Percent `key:"delivery-share" range:"1% to 100%" run:"pair" usage:"approximate fraction of CPU time for deliveries while publishers use all CPUs; more if required to deliver each message once. 100%: no limit"`
}

// Txn configures two-phase transactions.
type Txn struct {
	PreparedTimeout Duration `key:"prepared-timeout" range:"0, or 1s to 8760h" run:"pair" usage:"time after which an undecided prepared transaction is rolled back, at least 1s; its coordinator is notified when it reconnects. Use it only if no coordinator can have committed elsewhere. 0: never"`
}

// Default returns the default settings, which are for a pair that uses etcd. The defaults of node.name and
// coordinator.etcd.endpoints are added by Load.
func Default() Config {
	return Config{
		Data:   Data{Dir: "lockstep-data"},
		Listen: "127.0.0.1:7420",
		Coordinator: Coordinator{Type: CoordinatorEtcd, Etcd: Etcd{
			Prefix: "/lockstep/default/", DialTimeout: Duration(2 * time.Second),
		}},
		TLS: NodeTLS{ClientAuth: ClientAuthRequire, MinVersion: TLS13},
		Auth: Auth{JWT: JWT{
			PrincipalClaim: "sub", GroupsClaim: "groups", ClockSkew: Duration(time.Minute),
		}},
		Access:    Access{Mode: "open"},
		Sync:      "always",
		SyncEvery: Duration(100 * time.Millisecond),
		Memory:    Memory{Budget: 512 << 20, PageCache: "auto"},
		PageSize:  2 << 10, PageSizeMax: 32 << 10,
		Checkpoint: Checkpoint{Bytes: 128 << 20, Interval: Duration(30 * time.Second)},
		WAL: WAL{
			KeepBytes: 256 << 20, SegmentBytes: 64 << 20, ArchiveEvery: Duration(15 * time.Second),
			ArchiveHold: 4 << 30,
		},
		Log: Log{Level: "info", Format: "text"},
		Failover: Failover{
			Timeout: Duration(2 * time.Second), DropTimeout: Duration(1500 * time.Millisecond),
			FailbackDelay: Duration(time.Minute),
		},
		Fleet:     Fleet{Prefix: "/lockstep/fleet"},
		MinInSync: 1,
		Shutdown:  Shutdown{Handover: true, HandoverTimeout: Duration(5 * time.Second)},
		Disk:      Disk{LowWatermark: 256 << 20, StallTimeout: Duration(5 * time.Second)},
		Backup: Backup{
			KeepGenerations: 3, S3: BackupS3{PartSize: 8 << 20, Parallel: 4, RetryFor: Duration(time.Minute)},
		},
		Maintenance: Maintenance{BackgroundShare: 100, SnapshotRate: 224 << 20},
		Scrub:       Scrub{Rate: 4 << 20, Interval: Duration(7 * 24 * time.Hour)},
		Verify:      Verify{Interval: Duration(time.Hour)},
		Metrics:     Metrics{Queues: 20},
		AMQP:        AMQP{AutoCreate: true},
		Tracing:     Tracing{Sample: DefaultSample},
		Audit:       Audit{MaxBytes: 64 << 20, Keep: 8},
		Limits: Limits{
			MessageBytes: 64 << 20, TransactionBytes: 80 << 20, Queues: 100_000, Consumers: 10_000,
			Outstanding: 100_000, StreamInFlight: 4_096, StreamInFlightBytes: 64 << 20, PendingBytes: 256 << 20,
			Connections: 8_192, ConnectionsPerAddress: 2_048, Handshakes: 2_048,
			HandshakeTimeout: Duration(10 * time.Second), DeliveryShare: 5,
		},
	}
}
