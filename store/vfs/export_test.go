// SPDX-License-Identifier: Apache-2.0

package vfs

// For the tests of Bypass.
const (
	SectorBytes = sectorBytes
	BypassBytes = bypassBytes
)

// Bounce returns the memory that Bypass copies through; nil as long as it has copied nothing.
func (b *Bypass) Bounce() []byte { return b.bounce }
