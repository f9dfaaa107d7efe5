// SPDX-License-Identifier: Apache-2.0

package identity

import "fmt"

// Fence is what a node has promised not to go back behind (INV-1). Fences are ordered by Config first and by Term
// second; comparing both numbers independently would be wrong, because a node that tries to take over raises only the
// term: {Config: c, Term: t+1} shuts out the active of {c, t}, and is passed again by {c+1, t} if that active won.
type Fence struct {
	// Config of the record that the node obeys.
	Config uint64 `json:"config"`
	// Term of that record, or one more while the node tries to take over.
	Term uint64 `json:"term"`
}

// Less tells whether f is below o.
func (f Fence) Less(o Fence) bool {
	if f.Config != o.Config {
		return f.Config < o.Config
	}
	return f.Term < o.Term
}

// Admits tells whether a message that carries config and term may be obeyed by a node that holds fence f.
func (f Fence) Admits(config, term uint64) bool {
	return !Fence{Config: config, Term: term}.Less(f)
}

// String gives config/term.
func (f Fence) String() string { return fmt.Sprintf("%d/%d", f.Config, f.Term) }
