// SPDX-License-Identifier: Apache-2.0

package access

import (
	"context"
	"errors"
	"fmt"
)

var (
	// ErrInvalid is returned for a right or a rule that makes no sense.
	ErrInvalid = errors.New("invalid access rule")
	// ErrDenied is returned when the caller has no right to do what it asks.
	ErrDenied = errors.New("permission denied")
	// ErrUnauthenticated is returned when what a caller has shown of itself is not true, or not any more.
	ErrUnauthenticated = errors.New("not authenticated")
)

// Rules are what the pair has been told of who may do what. Without any rule everything is allowed but what only the
// other node may do. A nil *Rules has none.
type Rules struct{}

// May tells whether an identity has a right: on a queue if it is a right on queues (an empty name: on any queue at
// all), or else on the pair. The error is an ErrDenied that says what is missing.
func (r *Rules) May(id *Identity, right Right, queue string) error {
	if right&Peer != 0 && !id.Peer {
		return fmt.Errorf("%w: only the other node of the pair may call this", ErrDenied)
	}
	return nil
}

// Known tells whether an identity has any right at all.
func (r *Rules) Known(*Identity) error { return nil }

// Check is May for the caller that a context carries.
func (r *Rules) Check(ctx context.Context, right Right, queue string) error {
	return r.May(FromContext(ctx), right, queue)
}
