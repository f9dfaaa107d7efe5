// SPDX-License-Identifier: Apache-2.0

// Package amqp tests third-party AMQP 1.0 clients with a real pair. Some cases kill the active node. By default, the
// client is Azure/go-amqp; run.sh adds Qpid JMS 1.x and 2.x, Qpid Proton for Python and rhea. run.sh also runs
// Joram's JMS tests and a Spring application. README.md documents the protocol between the cases and the client
// programs.
package amqp
