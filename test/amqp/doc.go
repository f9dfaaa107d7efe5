// SPDX-License-Identifier: Apache-2.0

// Package amqp puts clients of AMQP 1.0 that others wrote through cases on a real pair whose active is killed:
// Azure/go-amqp in the ordinary run, and by run.sh Qpid JMS 1.x and 2.x, Qpid Proton for Python and rhea. It also runs
// Joram's JMS tests. README.md has the protocol between the cases and the programs with the clients.
package amqp
