// SPDX-License-Identifier: Apache-2.0

package access

import (
	"errors"
	"fmt"
)

// ErrQuota is returned for requests that would exceed a quota.
var ErrQuota = errors.New("quota exceeded")

// QuotaError describes an exceeded quota. It matches ErrQuota.
type QuotaError struct {
	Quota       string // as in `lockstep access quota`: queues, bytes, rate or connections
	Pattern     string // of the queues
	Limit, Used uint64 // Used does not include the request
	Advice      string // suggested action
}

// Error returns the quota, its usage and the suggested action.
func (e *QuotaError) Error() string {
	if e.Quota == "rate" {
		return fmt.Sprintf("%s: limit is %d published messages per second for queues %q; %s", ErrQuota, e.Limit, e.Pattern,
			e.Advice)
	}
	return fmt.Sprintf("%s: queues %q: %s limit is %d, used %d; %s", ErrQuota, e.Pattern, e.Quota, e.Limit, e.Used,
		e.Advice)
}

// Is makes errors.Is(err, ErrQuota) true.
func (e *QuotaError) Is(target error) bool { return target == ErrQuota }
