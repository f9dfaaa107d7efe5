// SPDX-License-Identifier: Apache-2.0

// Package peers connects a node to the other one of its pair: for its status, its upkeep, its digests and its good
// copies of messages.
package peers
