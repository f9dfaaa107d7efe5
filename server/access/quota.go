// SPDX-License-Identifier: Apache-2.0

package access

import (
	"errors"
	"fmt"
)

// ErrQuota is returned for what would exceed a quota.
var ErrQuota = errors.New("quota exceeded")

// QuotaError says which quota would be exceeded. It is an ErrQuota.
type QuotaError struct {
	// Quota is the name of the bound, as `lockstep access quota` has it: queues, bytes, rate or connections.
	Quota string
	// Pattern of the queues that it is for.
	Pattern string
	// Limit, and Used of it without the request.
	Limit, Used uint64
	// Advice says what to do.
	Advice string
}

// Error says what happened, what it means and what to do.
func (e *QuotaError) Error() string {
	if e.Quota == "rate" {
		return fmt.Sprintf("%s: %d messages per second may be published to the queues %q; %s", ErrQuota, e.Limit, e.Pattern,
			e.Advice)
	}
	return fmt.Sprintf("%s: the queues %q may have %s: %d, and have %d; %s", ErrQuota, e.Pattern, e.Quota, e.Limit, e.Used,
		e.Advice)
}

// Is makes errors.Is(err, ErrQuota) true.
func (e *QuotaError) Is(target error) bool { return target == ErrQuota }
