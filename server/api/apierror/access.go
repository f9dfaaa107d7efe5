// SPDX-License-Identifier: Apache-2.0

package apierror

import (
	"errors"
	"fmt"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/status"

	"github.com/lockstep-mq/lockstep/server/auth/access"
)

func addAccess(err error, info *errdetails.ErrorInfo) {
	var denied *access.DeniedError
	if !errors.As(err, &denied) {
		return
	}
	if info.Metadata == nil {
		info.Metadata = make(map[string]string)
	}
	info.Metadata["principal"] = denied.Principal
	if denied.Right != 0 {
		info.Metadata["right"] = denied.Right.String()
	}
	if denied.Queue != "" {
		info.Metadata["queue"] = denied.Queue
	}
}

func withQuota(st *status.Status, err error) *status.Status {
	var quota *access.QuotaError
	if !errors.As(err, &quota) {
		return st
	}
	with, detailErr := st.WithDetails(&errdetails.QuotaFailure{Violations: []*errdetails.QuotaFailure_Violation{{
		Subject:     "queues:" + quota.Pattern,
		Description: fmt.Sprintf("%s: limit is %d, used %d", quota.Quota, quota.Limit, quota.Used),
	}}})
	if detailErr != nil { // unreachable: the code is not OK and the detail is a known message
		return st
	}
	return with
}
