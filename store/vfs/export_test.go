// SPDX-License-Identifier: Apache-2.0

package vfs

// Exported for the tests of Bypass.
const (
	SectorBytes = sectorBytes
	BypassBytes = bypassBytes
)

// Bounce returns Bypass's aligned buffer; nil if nothing was copied.
func (b *Bypass) Bounce() []byte { return b.bounce }
