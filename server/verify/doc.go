// SPDX-License-Identifier: Apache-2.0

// Package verify looks after what the nodes hold: it reads everything from the disk now and then (the scrub), has
// damage repaired from the other node, compares both nodes, and says what is wrong.
package verify
