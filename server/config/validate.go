// SPDX-License-Identifier: Apache-2.0

package config

import (
	"cmp"
	"fmt"
	"math"
	"net"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/lockstep-mq/lockstep/store/backup"
)

const transactionSlack = 128 << 10

type problem struct{ key, text string }

type checker struct{ problems []problem }

func (c *checker) fail(key, format string, args ...any) {
	c.problems = append(c.problems, problem{key: key, text: fmt.Sprintf(format, args...)})
}

// checkRange checks the value of a setting against its tag `range`. For a number, the tag is "LOW to HIGH", "0, or
// LOW to HIGH" or "LOW to HIGH, a multiple of STEP". For a word, it is the list of valid words.
func (f field) checkRange(k *checker) {
	text, orZero := strings.CutPrefix(f.allowed, "0, or ")
	text, step, _ := strings.Cut(text, ", a multiple of ")
	low, high, bounded := strings.Cut(text, " to ")
	if !bounded {
		k.oneOf(f.key, f.text(), strings.Split(text, ", "))
		return
	}
	switch value := f.number(); {
	case orZero && value == 0:
	case !(value >= f.parsed(low) && value <= f.parsed(high)): // the negated condition also rejects NaN
		k.fail(f.key, "%s is not between %s and %s", f.text(), low, high)
	case step != "" && math.Mod(value, f.parsed(step)) != 0:
		k.fail(f.key, "%s is not a multiple of %s", f.text(), step)
	}
}

func (f field) number() float64 {
	if f.value.CanFloat() {
		return f.value.Float()
	}
	return float64(f.value.Int())
}

func (f field) parsed(text string) float64 {
	f.value = reflect.New(f.value.Type()).Elem()
	if err := f.set(text); err != nil {
		panic(fmt.Sprintf("setting %s: range %q: %v", f.key, f.allowed, err)) // TestRanges prevents this
	}
	return f.number()
}

func (c *checker) oneOf(key, value string, allowed []string) {
	if !slices.Contains(allowed, value) {
		c.fail(key, "%q is not one of %s%s", value, strings.Join(allowed, ", "), didYouMean(value, allowed))
	}
}

// address checks that a value is host:port. anyPort also permits port 0, and an empty or unspecified host.
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

// Validate returns an error that wraps ErrInvalid and lists all problems, one per line. It returns nil if the
// settings are valid.
func (c *Config) Validate() error {
	var lines []string
	for _, p := range c.problems() {
		lines = append(lines, p.key+": "+p.text)
	}
	return invalid(lines)
}

func (c *Config) problems() []problem {
	var k checker
	c.check(&k)
	return k.problems
}

func (c *Config) check(k *checker) {
	for _, f := range fields(c) {
		if f.allowed != "" {
			f.checkRange(k)
		}
	}
	c.checkNode(k)
	c.checkTLS(k)
	c.checkReach(k)
	c.checkAuth(k)
	c.checkCoordinator(k)
	c.checkSite(k)
	c.checkFleet(k)
	c.checkBackup(k)
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
	for _, a := range []struct {
		key, value string
		anyPort    bool
	}{
		{"metrics.listen", c.Metrics.Listen, true},
		{"console.listen", c.Console.Listen, true},
		{"amqp.listen", c.AMQP.Listen, true},
		{"amqp.advertise", c.AMQP.Advertise, false},
		{"advertise", c.Advertise, false},
	} {
		if a.value != "" {
			k.address(a.key, a.value, a.anyPort)
		}
	}
	c.checkTracing(k)
	for _, o := range c.Access.Operators {
		if len(o) > 255 {
			k.fail("access.operators", "%.40q… has %d bytes; maximum 255", o, len(o))
		}
	}
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
	for i, h := range t.Headers {
		if key, value, ok := strings.Cut(h, "="); !ok || strings.TrimSpace(key) == "" || strings.TrimSpace(value) == "" {
			k.fail("tracing.headers", "entry %d is not key=value", i+1) // the entry may contain a secret
		}
	}
}

func (c *Config) checkCoordinator(k *checker) {
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
	if c.Failover.DropTimeout >= c.Failover.Timeout {
		k.fail("failover.drop-timeout", "%s is not below failover.timeout (%s); the active must drop a silent "+
			"standby before the standby takes over",
			c.Failover.DropTimeout, c.Failover.Timeout)
	}
}

func (c *Config) checkEtcd(k *checker) {
	e := &c.Coordinator.Etcd
	checkEndpoints(k, "coordinator.etcd.endpoints", e.Endpoints)
	if len(e.Endpoints) == 0 {
		k.fail("coordinator.etcd.endpoints", "at least one endpoint is required, such as 127.0.0.1:2379")
	}
	if strings.Trim(e.Prefix, "/") == "" {
		k.fail("coordinator.etcd.prefix", "a prefix is required, such as /lockstep/orders/")
	}
	c.checkEtcdAccess(k)
}

// checkEtcdAccess checks the user and the TLS files, which are also used for the etcd of a fleet.
func (c *Config) checkEtcdAccess(k *checker) {
	e := &c.Coordinator.Etcd
	if e.Username == "" && e.Password != "" {
		k.fail("coordinator.etcd.username", "a password is set without a username")
	}
	if (e.TLS.Cert == "") != (e.TLS.Key == "") {
		k.fail("coordinator.etcd.tls.cert", "cert and key must be set together")
	}
}

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
	if r.Listen == "" {
		k.fail("coordinator.raft.listen", "an address is required, host:port: this node's entry in coordinator.raft.voters")
	} else {
		k.address("coordinator.raft.listen", r.Listen, r.Advertise != "")
	}
	if r.Advertise != "" {
		k.address("coordinator.raft.advertise", r.Advertise, false)
	}
	if own := cmp.Or(r.Advertise, r.Listen); own != "" && len(r.Voters) == voterCount &&
		!slices.Contains(r.Voters, own) {
		k.fail("coordinator.raft.voters", "this node's address %s is missing", own)
	}
	if (r.TLS.Cert == "") != (r.TLS.Key == "") || (r.TLS.CA == "") != (r.TLS.Cert == "") {
		k.fail("coordinator.raft.tls.ca", "ca, cert and key must be set together")
	}
}

func (c *Config) checkBackup(k *checker) {
	for _, s := range []struct{ key, path string }{{"backup.path", c.Backup.Path}, {"wal.archive", c.WAL.Archive}} {
		if s.path == "" {
			continue
		}
		if _, err := backup.ParseLocation(s.path); err != nil {
			k.fail(s.key, "%v", err)
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
}

func (c *Config) checkLimits(k *checker) {
	l := &c.Limits
	if l.TransactionBytes < l.MessageBytes+transactionSlack {
		k.fail("limits.transaction-bytes", "%s is too small for a message of limits.message-bytes (%s) with %s of overhead",
			l.TransactionBytes, l.MessageBytes, Size(transactionSlack))
	}
	if l.PendingBytes < l.TransactionBytes {
		k.fail("limits.pending-bytes", "%s is too small for one transaction of limits.transaction-bytes (%s)",
			l.PendingBytes, l.TransactionBytes)
	}
}
