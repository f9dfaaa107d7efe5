// SPDX-License-Identifier: Apache-2.0

//go:build deep || measure

package guard

import (
	"runtime"
	"strings"
)

// serialSections returns the functions that run in one goroutine per node or queue, and cannot use more than one CPU.
// Their cost per message limits the throughput of a pair on any machine.
func serialSections() map[string]string {
	return map[string]string{
		"commit":  "replication.(*Primary).runCommitter",
		"send":    "replication.(*session).send",
		"receive": "replication.(*Follower).follow",
		"apply":   "replication.(*Follower).startApplier",
		"deliver": "server/delivery/dispatch.(*dispatcher).deliver",
		"settle":  "server/delivery/dispatch.(*dispatcher).settle",
	}
}

// serialAllocations returns the allocations of each section since the process started, or nil if counted is false.
func serialAllocations(counted bool) map[string]int64 {
	if !counted {
		return nil
	}
	runtime.GC() // the profile describes the state at the second-to-last collection
	runtime.GC()
	n, ok := runtime.MemProfile(nil, true)
	var records []runtime.MemProfileRecord
	for !ok {
		records = make([]runtime.MemProfileRecord, n+50)
		if n, ok = runtime.MemProfile(records, true); ok {
			records = records[:n]
		}
	}
	out := map[string]int64{}
	for i := range records {
		if name := sectionOf(records[i].Stack()); name != "" {
			out[name] += records[i].AllocObjects
		}
	}
	return out
}

// sectionOf returns the serial section that contains a stack, or "".
func sectionOf(stack []uintptr) string {
	for frames := runtime.CallersFrames(stack); ; {
		f, more := frames.Next()
		for name, function := range serialSections() {
			if strings.HasSuffix(f.Function, function) || strings.Contains(f.Function, function+".") {
				return name
			}
		}
		if !more {
			return ""
		}
	}
}
