// SPDX-License-Identifier: Apache-2.0

// Package access implements access control: identities, rights, the right required by each call, and the rules that
// grant rights to identities.
//
// Package server/auth intercepts all calls: it authenticates the caller, checks the requirements of the method, and
// stores the identity in the call's context. The service itself checks rights on queues (Need.PerQueue), with
// Rules.Check for each queue named in a request.
package access
