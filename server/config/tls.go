// SPDX-License-Identifier: Apache-2.0

package config

import (
	"crypto/tls"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/lockstep-mq/lockstep/proto/tlsfiles"
)

// Values of tls.client-auth.
const (
	ClientAuthRequire = "require"
	ClientAuthNone    = "none"
)

// Values of tls.min-version.
const (
	TLS13 = "1.3"
	TLS12 = "1.2"
)

// NodeTLS configures TLS on the node's main listener, which serves clients, the CLI and other nodes, and on the AMQP
// listener. It also configures TLS on connections to other nodes.
type NodeTLS struct {
	Cert       string   `key:"cert" usage:"file with this node's certificate, for its port and for connections to the other node; enables TLS"`
	Key        string   `key:"key" usage:"file with the key of the certificate"`
	CA         string   `key:"ca" usage:"CA file for certificates of clients and of the other node"`
	ClientAuth string   `key:"client-auth" range:"require, none" usage:"client certificates: require (issued by tls.ca) or none"`
	MinVersion string   `key:"min-version" range:"1.3, 1.2" usage:"minimum TLS version, 1.3 or 1.2, for listen, amqp.listen, metrics.listen and console.listen, and for connections to other nodes and to etcd; voters always use 1.3"`
	PeerNames  []string `key:"peer-names" usage:"names (DNS, IP or URI) accepted in the other node's certificate; client certificates must not contain them. Default: the hosts that the two nodes advertise"`
}

// On reports whether TLS is configured.
func (t NodeTLS) On() bool { return t.Cert != "" }

// Files returns the certificate, key and CA files of the node's main listener.
func (t NodeTLS) Files() tlsfiles.Files { return tlsfiles.Files{CA: t.CA, Cert: t.Cert, Key: t.Key} }

// Version returns tls.min-version as a crypto/tls constant.
func (t NodeTLS) Version() uint16 {
	if t.MinVersion == TLS12 {
		return tls.VersionTLS12
	}
	return tls.VersionTLS13
}

// ClientCertificates returns the policy for client certificates on the node's main listener. With ClientAuthNone, a
// certificate is optional if a CA is set.
func (t NodeTLS) ClientCertificates() tls.ClientAuthType {
	switch {
	case t.ClientAuth != ClientAuthNone:
		return tls.RequireAndVerifyClientCert
	case t.CA != "":
		return tls.VerifyClientCertIfGiven
	default:
		return tls.NoClientCert
	}
}

// On reports whether TLS is configured.
func (t MetricsTLS) On() bool { return t.Own || t.Cert != "" }

// On reports whether TLS is configured.
func (t ConsoleTLS) On() bool { return t.Own || t.Cert != "" }

// ConsoleFiles returns the certificate, key and CA files of the console's port.
func (c *Config) ConsoleFiles() tlsfiles.Files {
	return c.portFiles(MetricsTLS(c.Console.TLS))
}

// MetricsFiles returns the certificate, key and CA files of the port for metrics and probes.
func (c *Config) MetricsFiles() tlsfiles.Files {
	return c.portFiles(c.Metrics.TLS)
}

func (c *Config) portFiles(t MetricsTLS) tlsfiles.Files {
	if t.Own {
		return c.TLS.Files()
	}
	return tlsfiles.Files{CA: t.CA, Cert: t.Cert, Key: t.Key}
}

func (c *Config) checkTLS(k *checker) {
	t := &c.TLS
	if (t.Cert == "") != (t.Key == "") {
		k.fail("tls.cert", "cert and key must be set together")
	}
	if t.CA != "" && !t.On() {
		k.fail("tls.ca", "requires tls.cert and tls.key")
	}
	if t.On() && t.CA == "" && t.ClientAuth != ClientAuthNone {
		k.fail("tls.ca", "required by tls.client-auth require; set tls.ca, or tls.client-auth none")
	}
	for _, name := range t.PeerNames {
		if strings.TrimSpace(name) == "" {
			k.fail("tls.peer-names", "empty name")
		}
	}
	if len(t.PeerNames) > 0 && (!t.On() || t.CA == "") {
		k.fail("tls.peer-names", "requires tls.cert, tls.key and tls.ca")
	}
	c.checkPort(k, "metrics", c.Metrics.TLS)
	c.checkPort(k, "console", MetricsTLS(c.Console.TLS))
}

func (c *Config) checkPort(k *checker, group string, m MetricsTLS) {
	if (m.Cert == "") != (m.Key == "") {
		k.fail(group+".tls.cert", "cert and key must be set together")
	}
	if m.CA != "" && m.Cert == "" {
		k.fail(group+".tls.ca", "requires %s.tls.cert", group)
	}
	if m.Own && (m.Cert != "" || !c.TLS.On()) {
		k.fail(group+".tls.own", "requires tls.cert and tls.key, and excludes %s.tls.cert", group)
	}
}

// checkReach rejects listeners without TLS that other machines can reach. It also rejects a node of a pair that other
// machines can reach and that cannot distinguish the other node from a client. It rejects nothing if Insecure is set.
func (c *Config) checkReach(k *checker) {
	if c.Insecure {
		return
	}
	for _, open := range c.Unencrypted() {
		k.fail(open.Key, "%s is reachable from other machines without TLS (%s): anyone with access to the network "+
			"can read and change everything. Set up TLS (lockstep cert init creates initial certificates), listen on "+
			"127.0.0.1, or, if the network is trusted, use --insecure", open.Address, open.Needs)
	}
	if c.TLS.On() && c.TLS.CA == "" && c.PeerToken == "" && c.Coordinator.Type != CoordinatorNone &&
		!LocalOnly(c.Listen) {
		k.fail("tls.client-auth", "without tls.ca this node cannot distinguish the other node from a client: set tls.ca, or "+
			"peer-token-file on both nodes, or permit any client to act as the other node with --insecure")
	}
}

// Listener is an address on which the node listens. Key is the setting that contains it, and Needs lists the
// settings that would secure it.
type Listener struct {
	Key, Address, Needs string
}

// Unencrypted returns the listeners without TLS that other machines can reach.
func (c *Config) Unencrypted() []Listener {
	var list []Listener
	add := func(key, address string, secured bool, needs string) {
		if address != "" && !secured && !LocalOnly(address) {
			list = append(list, Listener{Key: key, Address: address, Needs: needs})
		}
	}
	add("listen", c.Listen, c.TLS.On(), "tls.cert, tls.key, tls.ca")
	if r := &c.Coordinator.Raft; c.Coordinator.Type == CoordinatorRaft {
		add("coordinator.raft.listen", r.Listen, r.TLS.CA != "", "coordinator.raft.tls")
	}
	add("metrics.listen", c.Metrics.Listen, c.Metrics.TLS.On(), "metrics.tls.own or metrics.tls.cert and key")
	add("console.listen", c.Console.Listen, c.Console.TLS.On(), "console.tls.own or console.tls.cert and key")
	add("amqp.listen", c.AMQP.Listen, c.TLS.On(), "tls.cert, tls.key, tls.ca")
	return list
}

// LocalOnly reports whether an address (host:port) is reachable only from this machine. That is the case if its host
// is localhost or a loopback IP address. Other names are not resolved.
func LocalOnly(address string) bool {
	host, _, err := net.SplitHostPort(address)
	return err == nil && isLoopback(host)
}

func isLoopback(host string) bool {
	if strings.EqualFold(host, "localhost") {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.Unmap().IsLoopback()
}

// PeerNames returns the names accepted in the certificate of the other node. They are tls.peer-names or, if that
// is not set, the hosts of the given addresses.
func (c *Config) PeerNames(addresses []string) []string {
	if len(c.TLS.PeerNames) > 0 {
		return c.TLS.PeerNames
	}
	var names []string
	for _, a := range addresses {
		if host, _, err := net.SplitHostPort(a); err == nil && host != "" && !slices.Contains(names, host) {
			names = append(names, host)
		}
	}
	return names
}
