// SPDX-License-Identifier: Apache-2.0

package vfs

// Exported for the tests of Bypass.
const (
	SectorBytes = sectorBytes
	BypassBytes = bypassBytes
)

// Bounce returns the aligned buffer of b, or nil if nothing was copied.
func (b *Bypass) Bounce() []byte { return b.bounce }
