// SPDX-License-Identifier: Apache-2.0

// Package access decides who may do what: the identity of a caller, the rights there are, which right each call needs,
// and the rules that give rights to identities.
//
// Package server/gate stands before all calls: it finds out who calls, checks what the method needs, and puts the
// identity into the call's context. What needs a right on a queue (Need.PerQueue) is checked by the service, with
// Rules.Check, for each queue that a request names.
package access
