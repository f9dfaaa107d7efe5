// SPDX-License-Identifier: Apache-2.0

// Package serving has what a node serves clients with: a Session while the node is active, and none otherwise. Package
// server/node makes and ends them; Current is where the services find the one of the moment.
package serving
