// SPDX-License-Identifier: Apache-2.0

// Package session is the state of an AMQP 1.0 connection with its sessions and links (part 2 of the specification), in
// the role of the container that was connected to. It does no I/O, starts no goroutine and reads no clock: frames and
// the time are handed in, events and bytes are handed out.
//
//	               frames                                   events
//	wire.Reader ─────────────▶ Conn.Receive ─ ─ ─ Conn.Next ────────▶ amqp/broker
//	    socket ◀───────────── Conn.Output                                  │
//	               bytes                ◀──────────────────────────────────┘
//	                              Open, Accept, Refuse, Window, Send, Settle, Drained, Detach, End, Close
//
// The caller's loop: Receive a frame; take events by Next until there is none, and act on them; take the Output and
// write it. Calls that are not answers (Send, Settle, Window, Close, Tick) may come at any time between, and are
// followed by Output, too. One Conn is not safe for concurrent use: a caller with several goroutines locks.
//
// # States
//
// Of a connection; "in" is a frame of the peer, "out" a call of the caller:
//
//	        in Open          out Open
//	begun ──────────▶ Opened ─────────▶ open ──in Close──▶ Closed ──out Close──▶ done
//	                                     │                                        ▲
//	                                     └──out Close, or an error here──▶ closed ┘ in Close; all else is thrown away
//
// Of a session: Begin is answered at once. An End of the peer gives an Ended event, which the caller answers by
// Session.End; an End sent first throws away all that comes until the peer's.
//
// Of a link; refused ones and those that violate a rule take the way on the right:
//
//	           in Attach            out Accept
//	nothing ─────────────▶ Attached ──────────▶ attached ──out Detach, or a rule violated──▶ detached
//	   ▲                       │                   │                                            │
//	   │                       │ out Refuse        │ in Detach                                  │
//	   │                       ▼                   ▼                                            │
//	   ├◀──in Detach──── detached     Detached ──out Detach──▶ nothing                          │
//	   └◀──────────────────────────────in Detach────────────────────────────────────────────────┘
//
// Each link that an Attached event has given to the caller is given back by one Detached event, unless the caller has
// ended it, its session or the connection itself. The same holds for sessions, with Began and Ended.
//
// A peer may send further frames before it has the answers to the first ones (Open, Begin, Attach, Flow in a row); it
// may use a handle or a channel again as soon as it has sent a Detach or an End for it. A link that is attached again
// under the name of one that is attached in the same connection takes its place (amqp:link:stolen); across connections
// the caller does that, by Link.Detach.
//
// # Flow control
//
// Messages that come: Link.Window keeps a number of unsettled deliveries, Link.Grant gives credit once. Messages that
// are sent use the peer's credit and the session's window; what exceeds them waits, within Options.MaxUnsent, and
// Link.Recall takes it back. Windows of sessions count frames; those that come are taken at the rate at which the
// caller calls Receive, so that a caller that stops reading the socket stops the peer.
//
// # Bounds
//
// All that a peer can make a Conn keep is bounded by Options: sessions, links, messages in part, unsettled deliveries,
// messages that wait. Output is bounded by the caller (see Conn.Output).
package session
