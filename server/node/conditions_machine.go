// SPDX-License-Identifier: Apache-2.0

package node

import (
	"path/filepath"
	"runtime/metrics"

	"github.com/lockstep-mq/lockstep/server/conditions"
	"github.com/lockstep-mq/lockstep/server/config"
	"github.com/lockstep-mq/lockstep/store/units"
	"github.com/lockstep-mq/lockstep/store/vfs"
)

// machine says what is the matter with the process and what it was given.
func (l *conditionMonitor) machine(f *findings) {
	l.callers(f)
	f.node(l.cacheOnly, conditions.PageCacheOnly, "memory.page-cache is %s", l.n.cfg.Memory.PageCache)
	if l.n.audit != nil {
		st := l.n.audit.Stats()
		f.node(st.Trouble != "", conditions.AuditTrouble, "%s; %d records are lost since the start", st.Trouble, st.Lost)
	}
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
