// SPDX-License-Identifier: Apache-2.0

// Package session implements the state of an AMQP 1.0 connection with its sessions and links (part 2 of the
// specification). Its role is that of the container that accepted the connection. It does no I/O, starts no goroutines
// and reads no clock: the caller passes in frames and the time, and retrieves events and output bytes.
//
//	               frames                                   events
//	wire.Reader ─────────────▶ Conn.Receive ─ ─ ─ Conn.Next ────────▶ amqp/broker
//	    socket ◀───────────── Conn.Output                                  │
//	               bytes                ◀──────────────────────────────────┘
//	                              Open, Accept, Refuse, Window, Send, Settle, Drained, Detach, End, Close
//
// The caller's loop: Receive a frame; take all events with Next and handle them; take the Output and write it. Calls
// that are not responses (Send, Settle, Window, Close, Tick) are allowed at any time, and are also followed by Output.
//
// # States
//
// States of a connection; "in" is a frame of the peer, "out" a call of the caller:
//
//	        in Open          out Open
//	begun ──────────▶ Opened ─────────▶ open ──in Close──▶ Closed ──out Close──▶ done
//	                                     │                                        ▲
//	                                     └──out Close, or an error here──▶ closed ┘ in Close; all else is discarded
//
// Sessions: a Begin is answered immediately. The caller answers the peer's End, an Ended event, with Session.End. After
// an End sent first, all frames are discarded until the peer's End.
//
// States of a link; refused links and links with a violation take the path on the right:
//
//	           in Attach            out Accept
//	nothing ─────────────▶ Attached ──────────▶ attached ──out Detach, or a rule violated──▶ detached
//	   ▲                       │                   │                                            │
//	   │                       │ out Refuse        │ in Detach                                  │
//	   │                       ▼                   ▼                                            │
//	   ├◀──in Detach──── detached     Detached ──out Detach──▶ nothing                          │
//	   └◀──────────────────────────────in Detach────────────────────────────────────────────────┘
//
// Each link of an Attached event ends with exactly one Detached event, unless the caller ends the link, its session or
// the connection. The same applies to sessions, with Began and Ended.
//
// A peer may send Open, Begin, Attach and Flow without waiting for responses. It may reuse a handle or a channel after
// it has sent a Detach or an End for it. A link with the name of another link of the same connection replaces it
// (amqp:link:stolen). Across connections, the caller implements that with Link.Detach.
//
// # Flow control
//
// Received messages: Link.Window limits the number of unsettled deliveries, Link.Grant grants credit once. Sent
// messages use the peer's credit and the session's window. Messages that exceed them wait, limited by
// Options.MaxUnsent, and Link.Recall removes them. Session windows count frames; a caller that stops calling
// Receive also stops the peer.
//
// # Limits
//
// Options limit the sessions, links, incomplete messages, unsettled deliveries and waiting messages of a Conn. The
// caller limits the output (see Conn.Output).
package session
