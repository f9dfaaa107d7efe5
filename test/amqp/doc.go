// SPDX-License-Identifier: Apache-2.0

// Package amqp runs third-party AMQP 1.0 clients through cases on a real pair whose active is killed: Azure/go-amqp
// in the ordinary run, and with run.sh Qpid JMS 1.x and 2.x, Qpid Proton for Python and rhea. It also runs Joram's
// JMS tests. README.md documents the protocol between the cases and the client programs.
package amqp
