// SPDX-License-Identifier: Apache-2.0

// Package access implements access control: identities, rights, the right required by each call, and the rules that
// grant rights.
//
// Package server/auth authenticates each call, checks the requirements of its method, and stores the identity in its
// context. Services check rights on queues (Need.PerQueue) themselves, for each queue named in a request.
package access
