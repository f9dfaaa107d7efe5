// SPDX-License-Identifier: Apache-2.0

package node

import (
	"crypto/x509"
	"encoding/pem"
	"os"
	"path/filepath"
	"runtime/metrics"
	"time"

	"github.com/lockstep-mq/lockstep/server/conditions"
	"github.com/lockstep-mq/lockstep/server/config"
	"github.com/lockstep-mq/lockstep/store/units"
	"github.com/lockstep-mq/lockstep/store/vfs"
)

// certificateWarning is how long before its end a certificate is told.
const certificateWarning = 14 * 24 * time.Hour

// certificate is one that the node has loaded.
type certificate struct {
	file string
	ends time.Time
}

// certificates are those of the files that are configured, as they are now: the ones that the node uses until it is
// started again. A file that cannot be used is an error elsewhere.
func certificates(c *config.Config) []certificate {
	var out []certificate
	for _, file := range []string{
		c.TLS.Cert, c.TLS.CA, c.Coordinator.Raft.TLS.Cert, c.Coordinator.Raft.TLS.CA, c.Coordinator.Etcd.TLS.Cert,
		c.Coordinator.Etcd.TLS.CA,
	} {
		if file == "" {
			continue
		}
		raw, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		if ends, ok := firstEnd(raw); ok {
			out = append(out, certificate{file: file, ends: ends})
		}
	}
	return out
}

// firstEnd is when the first of the certificates in a PEM file ends.
func firstEnd(raw []byte) (ends time.Time, ok bool) {
	for block, rest := pem.Decode(raw); block != nil; block, rest = pem.Decode(rest) {
		if c, err := x509.ParseCertificate(block.Bytes); err == nil && (!ok || c.NotAfter.Before(ends)) {
			ends, ok = c.NotAfter, true
		}
	}
	return ends, ok
}

// machine says what is the matter with the process and what it was given.
func (l *conditionMonitor) machine(f *findings, now time.Time) {
	for _, c := range l.certs { // the first of each kind that is found is told
		left := c.ends.Sub(now)
		f.node(left <= 0, conditions.CertificateExpired, "%s has ended at %s", c.file, c.ends.Format(time.RFC3339))
		f.node(left > 0 && left < certificateWarning, conditions.CertificateExpires, "%s ends at %s", c.file,
			c.ends.Format(time.RFC3339))
	}
	f.node(l.cacheOnly, conditions.PageCacheOnly, "memory.page-cache is %s", l.n.cfg.Memory.PageCache)
	used, allowed := memoryInUse(), memoryAllowed(l.n.cfg.Memory.Budget.Bytes())
	f.node(used > allowed, conditions.MemoryOverBudget, "%s in use, memory.budget is %s", units.Bytes(used),
		l.n.cfg.Memory.Budget)
}

// fallsBack tells whether the filesystem of the store refuses what memory.page-cache asks for.
func fallsBack(fs vfs.FS, c *config.Config) bool {
	disk, ok := fs.(interface{ TakesDirect(name string) bool })
	return ok && c.Memory.PageCache != "keep" && !disk.TakesDirect(filepath.Join(c.Data.Dir, "page.db"))
}

// memoryAllowed is what a process may have in use before a condition is told.
func memoryAllowed(budgetBytes int64) int64 { return budgetBytes + budgetBytes/4 + memoryBesides }

// memoryInUse is what the Go runtime has from the system and has not given back.
func memoryInUse() int64 {
	samples := []metrics.Sample{{Name: "/memory/classes/total:bytes"}, {Name: "/memory/classes/heap/released:bytes"}}
	metrics.Read(samples)
	if samples[0].Value.Kind() != metrics.KindUint64 || samples[1].Value.Kind() != metrics.KindUint64 {
		return 0
	}
	return int64(samples[0].Value.Uint64() - samples[1].Value.Uint64())
}
