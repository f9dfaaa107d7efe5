// SPDX-License-Identifier: Apache-2.0

package config

import (
	"cmp"
	"slices"
	"strings"

	"github.com/lockstep-mq/lockstep/proto/tlsfiles"
)

// Site configures the other site of a pair. One of the two pairs replicates the other.
type Site struct {
	Name      string   `key:"name" usage:"name of this site: 1 to 64 letters, digits, - and _. Equal on both nodes, different at the other site; required with site.remote"`
	Remote    []string `key:"remote" usage:"addresses of the nodes of the other site, host:port, comma-separated or a list; if empty, the pair has no other site"`
	TokenFile string   `key:"token-file" usage:"file with secrets shared by both sites, one per line: the first is sent to the other site, all are accepted from it"`
	CA        string   `key:"ca" usage:"CA file for the certificates of the other site; enables TLS for connections to it. Default: tls.ca"`
	KeepBytes Size     `key:"keep-bytes" range:"0 to 1024TiB" usage:"log retained for a replica at the other site that is disconnected or slow, if more than wal.keep-bytes; 0: only wal.keep-bytes. Equal on both nodes, at both sites"`
	MaxLag    Duration `key:"max-lag" range:"0, or 1s to 24h" run:"pair" usage:"age of the oldest transaction that the replica at the other site lacks, above which writes wait for up to 5s, and are then refused; 0: no limit. While the replica is disconnected, writes are refused after this time"`
}

const maxSiteName = 64

// SiteTLS reports whether connections to the other site use TLS.
func (c *Config) SiteTLS() bool { return c.TLS.On() || c.Site.CA != "" }

// SiteFiles returns the files for connections to the other site. The client certificate is that of the node. If
// SiteTLS returns true and no CA is set, the system's CAs are used.
func (c *Config) SiteFiles() tlsfiles.Files {
	return tlsfiles.Files{CA: cmp.Or(c.Site.CA, c.TLS.CA), Cert: c.TLS.Cert, Key: c.TLS.Key}
}

func (c *Config) checkSite(k *checker) {
	s := &c.Site
	if s.Name != "" && !validSiteName(s.Name) {
		k.fail("site.name", "%.80q is not a site name; use 1 to %d letters, digits, - and _", s.Name, maxSiteName)
	}
	if s.KeepBytes > 0 && s.Name == "" {
		k.fail("site.keep-bytes", "requires site.name")
	}
	if len(s.Remote) == 0 {
		if s.CA != "" {
			k.fail("site.ca", "requires site.remote")
		}
		return
	}
	if s.Name == "" {
		k.fail("site.name", "required with site.remote")
	}
	for i, address := range s.Remote {
		k.address("site.remote", address, false)
		switch {
		case slices.Contains(s.Remote[:i], address):
			k.fail("site.remote", "%s is listed more than once", address)
		case address == c.Listen || address == c.Advertise:
			k.fail("site.remote", "%s is the address of this node; list the nodes of the other site", address)
		}
	}
	c.checkSiteReach(k)
}

func validSiteName(name string) bool {
	return len(name) <= maxSiteName && !strings.ContainsFunc(name, func(r rune) bool {
		letter := r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z'
		return !letter && (r < '0' || r > '9') && r != '-' && r != '_'
	})
}

// checkSiteReach rejects connections to the other site that are not encrypted or not authenticated, unless Insecure
// is set or the other site is on this host.
func (c *Config) checkSiteReach(k *checker) {
	if c.Insecure || !slices.ContainsFunc(c.Site.Remote, func(a string) bool { return !LocalOnly(a) }) {
		return
	}
	if !c.SiteTLS() {
		k.fail("site.remote", "connections to the other site do not use TLS: anyone with access to the network can read "+
			"all messages. Set up TLS (tls.cert, tls.key, tls.ca), set site.ca, or, if the network is trusted, use "+
			"--insecure")
	}
	if !c.TLS.On() && c.Site.TokenFile == "" {
		k.fail("site.token-file", "without a client certificate (tls.cert), the other site cannot authenticate this one: "+
			"set site.token-file at both sites, or permit any client to act as the other site with --insecure")
	}
}
