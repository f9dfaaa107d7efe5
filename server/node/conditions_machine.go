// SPDX-License-Identifier: Apache-2.0

package node

import (
	"path/filepath"
	"runtime/metrics"

	"github.com/lockstep-mq/lockstep/server/config"
	"github.com/lockstep-mq/lockstep/server/observe/conditions"
	"github.com/lockstep-mq/lockstep/store/units"
	"github.com/lockstep-mq/lockstep/store/vfs"
)

// machine reports problems of the process and its resources.
func (l *conditionMonitor) machine(f *findings) {
	l.callers(f)
	f.node(l.cacheOnly, conditions.PageCacheOnly, "memory.page-cache is %s", l.n.cfg.Memory.PageCache)
	if l.n.audit != nil {
		st := l.n.audit.Stats()
		f.node(st.Error != "", conditions.AuditErrors, "%s; %d records lost since the start", st.Error, st.Lost)
	}
	used, allowed := memoryInUse(), memoryAllowed(l.n.cfg.Memory.Budget.Bytes())
	f.node(used > allowed, conditions.MemoryOverBudget, "%s in use, memory.budget is %s", units.Bytes(used),
		l.n.cfg.Memory.Budget)
}

// fallsBack reports whether the store's filesystem rejects the mode that memory.page-cache requests.
func fallsBack(fs vfs.FS, c *config.Config) bool {
	disk, ok := fs.(interface{ TakesDirect(name string) bool })
	return ok && c.Memory.PageCache != "keep" && !disk.TakesDirect(filepath.Join(c.Data.Dir, "page.db"))
}

// memoryAllowed returns the memory in use, in bytes, above which a condition is reported.
func memoryAllowed(budgetBytes int64) int64 { return budgetBytes + budgetBytes/4 + memoryOutsideLimits }

// memoryInUse returns the bytes that the Go runtime has obtained from the system and not released.
func memoryInUse() int64 {
	samples := []metrics.Sample{{Name: "/memory/classes/total:bytes"}, {Name: "/memory/classes/heap/released:bytes"}}
	metrics.Read(samples)
	if samples[0].Value.Kind() != metrics.KindUint64 || samples[1].Value.Kind() != metrics.KindUint64 {
		return 0
	}
	return int64(samples[0].Value.Uint64() - samples[1].Value.Uint64())
}
