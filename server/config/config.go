// SPDX-License-Identifier: Apache-2.0

// Package config implements the settings of a Lockstep node: names, defaults, meaning and limits.
//
// A setting has one dotted key (`wal.keep-bytes`), which is its path in the YAML file, and gives its flag
// (`--wal-keep-bytes`) and its environment variable (`LOCKSTEP_WAL_KEEP_BYTES`). Flags take precedence over the
// environment, the environment over the file, the file over the defaults. The struct Config is the only list: keys,
// flags, variables and the help text are all derived from its tags.
package config

import "time"

const (
	// CoordinatorEtcd stores the cluster record in etcd.
	CoordinatorEtcd = "etcd"
	// CoordinatorRaft stores it in a raft quorum of the two nodes and a witness.
	CoordinatorRaft = "raft"
	// CoordinatorNone runs a single node, always active, without a standby or failover.
	CoordinatorNone = "none"
)

// Config is the settings of one node. The zero value is not valid; start with Default.
type Config struct {
	Node        Node        `key:"node"`
	Data        Data        `key:"data"`
	Listen      string      `key:"listen" usage:"address for clients, the CLI and the other node, host:port; port 0 takes a free one"`
	Advertise   string      `key:"advertise" usage:"address that clients and the other node reach this node by, host:port; default: from listen"`
	TLS         NodeTLS     `key:"tls"`
	PeerToken   string      `key:"peer-token-file" usage:"file with a secret that only the two nodes have, one per line: the first is shown to the other node, each is accepted from it. For a pair without TLS, or without certificates of clients"`
	Insecure    bool        `key:"insecure" usage:"listen without TLS on addresses that other machines reach: it is meant"`
	Auth        Auth        `key:"auth"`
	Access      Access      `key:"access"`
	Coordinator Coordinator `key:"coordinator"`
	Sync        string      `key:"sync" usage:"when a transaction is acknowledged: always (fdatasync on both nodes), interval, off (in both page caches)"`
	SyncEvery   Duration    `key:"sync-interval" usage:"with sync=interval: how often the log is synced"`
	CommitDelay Duration    `key:"commit-delay" usage:"how long the active collects transactions before it writes those that wait, up to 100ms: fewer, larger writes, later answers. 0: not at all; what comes while one batch is written is the next one"`
	Memory      Memory      `key:"memory"`
	PageSize    Size        `key:"page-size" usage:"page size of a new page file, a multiple of 2KiB; a page file that exists keeps its own"`
	PageSizeMax Size        `key:"page-size-max" usage:"largest page size that a scan recommends, a multiple of 2KiB up to 1MiB; the pair's own setting wins"`
	Resize      bool        `key:"resize-on-startup" usage:"resize page.db to the recommended page size at the next start; done once each time it is turned on"`
	Compact     bool        `key:"compact-on-startup" usage:"compact page.db at the next start; done once each time it is turned on"`
	Checkpoint  Checkpoint  `key:"checkpoint"`
	WAL         WAL         `key:"wal"`
	Log         Log         `key:"log"`
	Failover    Failover    `key:"failover"`
	MinInSync   int         `key:"min-in-sync" usage:"1: a node goes on alone; 2: writes are refused while there is only one. Written into the record by each node that becomes active: set it on both"`
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
	// Warnings lists ignored settings and similar notes for the operator. It is not a setting.
	Warnings []string `key:"-"`
}

// Node identifies the node.
type Node struct {
	Name string `key:"name" usage:"name of the node in status and logs; default: the host's name"`
}

// Access configures access in addition to the rules stored by the pair.
type Access struct {
	Mode      string   `key:"mode" usage:"what holds until the pair has its first rule of who may do what: open lets everybody do everything, deny only access.operators"`
	Operators []string `key:"operators" usage:"principals, or globs such as ops-*, that may always do everything, comma-separated or a list: so that the rules cannot lock the operators out. The same on both nodes"`
}

// Data configures the location of the store.
type Data struct {
	Dir string `key:"dir" usage:"directory of the store; made if it is not there"`
}

// Coordinator configures the coordinator that stores the cluster record.
type Coordinator struct {
	Type string `key:"type" usage:"etcd: a pair whose record is in etcd; raft: in a quorum of the two nodes and a witness; none: one node alone"`
	Etcd Etcd   `key:"etcd"`
	Raft Raft   `key:"raft"`
}

// Raft configures the quorum of the two nodes and a witness.
type Raft struct {
	Listen    string   `key:"listen" usage:"address that this node listens on for the other voters, host:port"`
	Advertise string   `key:"advertise" usage:"address that the other voters reach this node by, host:port; default: listen"`
	Voters    []string `key:"voters" usage:"addresses of the three voters, this node, the other node and the witness, comma-separated or a list; the same on all three"`
	Dir       string   `key:"dir" usage:"directory for this node's vote and its copy of the record; default: raft in data.dir"`
	TLS       RaftTLS  `key:"tls"`
}

// RaftTLS is certificate files in PEM.
type RaftTLS struct {
	CA   string `key:"ca" usage:"file with the certificate authority that the voters' certificates come from; turns TLS between voters on"`
	Cert string `key:"cert" usage:"file with this voter's certificate, good for servers and clients"`
	Key  string `key:"key" usage:"file with the key of that certificate"`
	// Names of the other voters, and of operators who change the quorum.
	Names []string `key:"names" usage:"names (DNS, IP or URI), one of which the certificate of each other voter carries, and of operators who change the quorum; default: the hosts of the voters' addresses"`
}

// Etcd configures the connection to etcd.
type Etcd struct {
	Endpoints    []string `key:"endpoints" usage:"etcd endpoints, comma-separated or a list"`
	Prefix       string   `key:"prefix" usage:"key prefix of this pair in etcd; each pair needs its own"`
	Username     string   `key:"username" usage:"etcd user"`
	Password     string   `key:"password" usage:"password of the etcd user; better in password-file or the environment"`
	PasswordFile string   `key:"password-file" usage:"file that holds the password of the etcd user"`
	DialTimeout  Duration `key:"dial-timeout" usage:"how long one connection attempt to etcd may take"`
	TLS          TLS      `key:"tls"`
}

// TLS is certificate files in PEM.
type TLS struct {
	CA   string `key:"ca" usage:"file with the certificate authorities that etcd's certificate is checked against; turns TLS on"`
	Cert string `key:"cert" usage:"file with this node's client certificate for etcd"`
	Key  string `key:"key" usage:"file with the key of that certificate"`
}

// Memory configures the memory budget.
type Memory struct {
	Budget    Size   `key:"budget" usage:"memory of the process, about: half of it for messages that are not yet in pages and for parts of the index, the rest for what is under way"`
	PageCache string `key:"page-cache" usage:"what checkpoints, and large writes to the log, do with the system's page cache: keep (go through it), drop (past it, to the disk), or auto: past it on the standby, where no consumer reads, and otherwise whichever takes less time"`
}

// Checkpoint configures when checkpoints are written.
type Checkpoint struct {
	Bytes    Size     `key:"bytes" usage:"write a checkpoint after this much log"`
	Interval Duration `key:"interval" usage:"write a checkpoint at least this often when something changed"`
}

// WAL configures the transaction log, which is replicated and used for recovery.
type WAL struct {
	KeepBytes    Size     `key:"keep-bytes" usage:"log kept for a standby to catch up from, beyond what recovery needs"`
	SegmentBytes Size     `key:"segment-bytes" usage:"size of one log segment file"`
	Archive      string   `key:"archive" usage:"directory, file:///PATH or s3://BUCKET/PREFIX that the log is archived to, for restores to a point in time. Each node has its own; in a bucket that is a folder with its name; empty: none"`
	ArchiveEvery Duration `key:"archive-interval" usage:"how often what is new in the log is archived: what the loss of this node's disk can cost a restore"`
	ArchiveHold  Size     `key:"archive-hold-bytes" usage:"log that is held back while it cannot be archived; beyond that the archive gets a gap"`
}

// Log configures the process log on stderr.
type Log struct {
	Level  string `key:"level" usage:"lowest level of log lines: debug, info, warn or error"`
	Format string `key:"format" usage:"form of log lines on stderr: text or json"`
}

// Failover configures failure detection. These times affect how soon a failover starts, not the safety of writes.
type Failover struct {
	Timeout       Duration `key:"timeout" usage:"silence of the active after which the standby takes over; a killed process is detected within milliseconds"`
	DropTimeout   Duration `key:"drop-timeout" usage:"silence of the standby after which the active drops it; must be below failover.timeout"`
	Preferred     bool     `key:"preferred" usage:"this node should be the active one: the other one gives it the role when it has been in sync for failover.failback-delay. On one of the two nodes"`
	FailbackDelay Duration `key:"failback-delay" usage:"how long the preferred node must be in sync, without interruption, before this node hands over to it"`
}

// Shutdown configures the actions before a node stops.
type Shutdown struct {
	Handover        bool     `key:"handover" usage:"an active that is asked to stop (SIGTERM) hands over to the standby first, if that is in sync and the pair is not paused"`
	HandoverTimeout Duration `key:"handover-timeout" usage:"how long that may take before the node stops without it"`
}

// Disk configures the free space checks of the store's filesystem.
type Disk struct {
	LowWatermark Size     `key:"low-watermark" usage:"publishes are refused while the filesystem has less than this available; acks still work"`
	StallTimeout Duration `key:"stall-timeout" usage:"a write or sync of the log that takes longer makes the node stop its heartbeats, so that the other one takes over"`
}

// Backup configures the location of backups.
type Backup struct {
	Path            string   `key:"path" usage:"directory of save-sets on this node, file:///PATH, or s3://BUCKET/PREFIX; the pair's own setting wins"`
	KeepGenerations int      `key:"keep-generations" usage:"save-sets that are kept; the pair's own setting wins"`
	Recipients      []string `key:"recipients" usage:"public keys of age (age1…) that this node's save-sets and log archive are encrypted to, comma-separated or a list; empty: they are not encrypted. The secret keys are needed for a restore only"`
	S3              BackupS3 `key:"s3"`
}

// BackupS3 configures access to the S3 server of backup.path and wal.archive. The keys come from files or from the
// environment, as AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, and are not settings.
type BackupS3 struct {
	Endpoint         string   `key:"endpoint" usage:"URL of the S3 server of backup.path and wal.archive, such as https://s3.example.com:9000; empty: Amazon's"`
	Region           string   `key:"region" usage:"region of the bucket; empty: AWS_REGION or AWS_DEFAULT_REGION of the environment, or us-east-1"`
	PathStyle        bool     `key:"path-style" usage:"name the bucket in the path of requests and never in the host; where that is not Amazon's, it is done anyway"`
	CA               string   `key:"ca" usage:"file with the authorities that the certificate of the S3 server is checked against; empty: the system's"`
	AccessKeyFile    string   `key:"access-key-file" usage:"file that holds the access key; it is read again each minute. Empty: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, the credentials file of the AWS tools, or with Amazon's endpoint the machine's role"`
	SecretKeyFile    string   `key:"secret-key-file" usage:"file that holds the secret key"`
	SessionTokenFile string   `key:"session-token-file" usage:"file that holds the session token of temporary keys; empty: they need none"`
	PartSize         Size     `key:"part-size" usage:"size of the parts in which a save-set or a file of the archive is sent; of very large ones they are larger, because there are at most 10,000"`
	Parallel         int      `key:"parallel" usage:"parts that are sent at once, at most; they take an eighth of memory.budget at most, or two parts"`
	RetryFor         Duration `key:"retry-for" usage:"how long a request is repeated that the S3 server does not answer, or does not take at the moment"`
}

// Maintenance configures maintenance of page files.
type Maintenance struct {
	BackgroundShare Percent  `key:"background-share" usage:"largest share of the time that a scan, backup, check or verification works; it pauses for the rest. It works less while it makes commits take longer"`
	SnapshotRate    Size     `key:"snapshot-rate" usage:"bytes per second that this node takes in of a snapshot of the other one; 0: as fast as it comes. Less comes while that makes commits take longer"`
	RewriteRate     Size     `key:"rewrite-rate" usage:"bytes per second that a resize or compact of this node's page file may copy, such as 50MiB; 0: as fast as it can. It copies less while that makes commits take longer"`
	Autotune        Autotune `key:"autotune"`
}

// Autotune configures automatic changes of the page size.
type Autotune struct {
	Window  string  `key:"window" usage:"time of day in which a scan may start a rolling resize or compact, such as 02:00-05:00; empty: never. The pair's own setting wins"`
	MinGain Percent `key:"min-gain" usage:"what that must save at least, of the space or of the reads, such as 20%"`
}

// Scrub configures the periodic read of all data, with repair of corruption.
type Scrub struct {
	Rate     Size     `key:"rate" usage:"bytes per second that the scrub in the background reads, such as 4MiB; 0: as fast as it can"`
	Interval Duration `key:"interval" usage:"time from the beginning of one scrub of all pages and the log to that of the next; the first begins a minute after the start. 0: none"`
}

// Verify configures the comparison of the two nodes.
type Verify struct {
	Interval Duration `key:"interval" usage:"how often the active compares the rolling digests of its queues with the standby's; cheap. 0: never"`
}

// Metrics configures the port of metrics and probes.
type Metrics struct {
	Listen string `key:"listen" usage:"address for Prometheus (/metrics), probes (/healthz, /readyz, /activez) and profiles (/debug/pprof/), host:port; empty: none"`
	Queues int    `key:"queues" usage:"queues that the metrics tell of one by one, those with the most messages; each of them costs 4 series, and 2 for each of as many of its subscriptions. 0: none"`
	// Token required to read the metrics.
	Token string     `key:"token-file" usage:"file with a secret, one per line, that requests of /metrics show (Authorization: Bearer); empty: /metrics is open. The probes are always open"`
	TLS   MetricsTLS `key:"tls"`
}

// MetricsTLS configures TLS of the port of metrics and probes.
type MetricsTLS struct {
	Own  bool   `key:"own" usage:"use tls.cert, tls.key and tls.ca for metrics.listen, too"`
	Cert string `key:"cert" usage:"file with a certificate for metrics.listen; turns TLS on"`
	Key  string `key:"key" usage:"file with the key of that certificate"`
	CA   string `key:"ca" usage:"file with the authorities that certificates of those who ask are checked against; none has to be shown"`
}

// Console configures the web console for operators.
type Console struct {
	Listen string     `key:"listen" usage:"address of the console, a web page for operators, host:port; empty: none"`
	TLS    ConsoleTLS `key:"tls"`
}

// ConsoleTLS configures TLS of the port of the console.
type ConsoleTLS struct {
	Own  bool   `key:"own" usage:"use tls.cert, tls.key and tls.ca for console.listen, too"`
	Cert string `key:"cert" usage:"file with a certificate for console.listen; turns TLS on"`
	Key  string `key:"key" usage:"file with the key of that certificate"`
	CA   string `key:"ca" usage:"file with the authorities that certificates of operators are checked against; none has to be shown"`
}

// AMQP configures the port for AMQP 1.0 clients.
type AMQP struct {
	Listen     string `key:"listen" usage:"address for clients that speak AMQP 1.0, such as JMS by Qpid JMS, host:port; empty: none. With tls.cert it is TLS as listen is, with the same certificates"`
	Advertise  string `key:"advertise" usage:"address that AMQP clients reach this node by, host:port, which the other node sends them to; default: the host of advertise, with the port of amqp.listen"`
	AutoCreate bool   `key:"auto-create" usage:"a queue that an AMQP client names and that is not there is made, if the client may manage it"`
}

// Tracing configures the export of trace spans.
type Tracing struct {
	Endpoint string   `key:"endpoint" usage:"collector that takes traces, OTLP over gRPC: host:port, or a URL with http or https; empty: none, unless OTEL_EXPORTER_OTLP_ENDPOINT names one"`
	Sample   Ratio    `key:"sample" usage:"share of the requests without a trace of their own that are traced, 0 to 1; those with one are traced if it is sampled"`
	Headers  []string `key:"headers" usage:"headers of each request to the collector, such as authorization=Bearer …, comma-separated or a list; better in the environment"`
	Insecure bool     `key:"insecure" usage:"the connection to the collector is not encrypted"`
	CA       string   `key:"ca" usage:"file with the authorities that the collector's certificate is checked against; default: the system's"`
}

// DefaultSample is the default of tracing.sample.
const DefaultSample Ratio = 0.01

// Audit configures the audit log of administrative and refused calls.
type Audit struct {
	File     string `key:"file" usage:"file that gets a line of JSON for each administrative call to this node and for each call that was refused; empty: the log gets them. lockstep audit tail shows the newest"`
	MaxBytes Size   `key:"max-bytes" usage:"size at which the file is rotated, in whole MiB"`
	Keep     int    `key:"keep" usage:"older files that are kept"`
}

// Limits limits the resources of one request or connection.
type Limits struct {
	MessageBytes        Size `key:"message-bytes" usage:"largest body of one message"`
	TransactionBytes    Size `key:"transaction-bytes" usage:"largest transaction: all of its messages together"`
	Queues              int  `key:"queues" usage:"queues in the store"`
	Consumers           int  `key:"consumers" usage:"consumers attached to this node"`
	Outstanding         int  `key:"outstanding" usage:"messages delivered to one consumer and not yet answered, and its largest credit"`
	StreamInFlight      int  `key:"stream-in-flight" usage:"requests of one publish stream that are not yet answered"`
	StreamInFlightBytes Size `key:"stream-in-flight-bytes" usage:"bytes of requests of one publish stream that are not yet answered; at most an eighth of memory.budget"`
	PendingBytes        Size `key:"pending-bytes" usage:"transactions that wait to be committed, over all clients; more wait in their connections; at most half of memory.budget"`

	Connections           int      `key:"connections" usage:"connections to this node's port, of clients and commands together; at most one for each 64KiB of memory.budget, and what the system's limit of open files leaves. The other node has places of its own"`
	ConnectionsPerAddress int      `key:"connections-per-address" usage:"those of one address (of IPv6: of a /64 network); raise it if many clients come through one proxy. As many attempts that make no call are let in within 4s"`
	Handshakes            int      `key:"handshakes" usage:"connections of which no call was let in yet, over all addresses: TLS, HTTP/2 and authentication. Beyond that the oldest of them make room, or new ones are refused; an address that has others, which made calls, has a quarter more"`
	HandshakeTimeout      Duration `key:"handshake-timeout" usage:"how long a connection may take until a call of it is let in: TLS, HTTP/2 and authentication together. After that it is closed"`

	DeliveryShare Percent `key:"delivery-share" usage:"share of the processors that deliveries may use, about, while publishers want all of them, if it takes less to deliver each message once; otherwise nothing holds deliveries back. 100%: never"`
}

// Txn configures two-phase transactions.
type Txn struct {
	PreparedTimeout Duration `key:"prepared-timeout" usage:"a prepared transaction that was not decided for so long is rolled back, and its coordinator is told when it comes back, at least 1s; only where no coordinator may have committed elsewhere. 0: never"`
}

// Default returns the settings of a node of a pair with etcd on the same host.
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
		MinInSync: 1,
		Shutdown:  Shutdown{Handover: true, HandoverTimeout: Duration(5 * time.Second)},
		Disk:      Disk{LowWatermark: 256 << 20, StallTimeout: Duration(5 * time.Second)},
		Backup: Backup{
			KeepGenerations: 3, S3: BackupS3{PartSize: 8 << 20, Parallel: 4, RetryFor: Duration(time.Minute)},
		},
		Maintenance: Maintenance{BackgroundShare: 100, SnapshotRate: 224 << 20, Autotune: Autotune{MinGain: 20}},
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
