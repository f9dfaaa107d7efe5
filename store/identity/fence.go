// SPDX-License-Identifier: Apache-2.0

package identity

import "fmt"

// Fence is the lower bound of the configurations and terms that a node obeys (INV-1). Fences are ordered by Config
// first and by Term second. An independent comparison of both numbers would be wrong, because a node that attempts a
// takeover raises only the term. The fence {Config: c, Term: t+1} excludes the active of {c, t}. If that active won,
// its {c+1, t} is again above the fence.
type Fence struct {
	// Config is that of the record that the node obeys.
	Config uint64 `json:"config"`
	// Term is that of the record, or one more while the node attempts a takeover.
	Term uint64 `json:"term"`
}

// Less reports whether f is below o.
func (f Fence) Less(o Fence) bool {
	if f.Config != o.Config {
		return f.Config < o.Config
	}
	return f.Term < o.Term
}

// Admits reports whether a node with fence f may obey a message with the given config and term.
func (f Fence) Admits(config, term uint64) bool {
	return !Fence{Config: config, Term: term}.Less(f)
}

// String returns config/term.
func (f Fence) String() string { return fmt.Sprintf("%d/%d", f.Config, f.Term) }
